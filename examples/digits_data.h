/* The handwritten digits of examples/data, for the programs that read them. */
#ifndef ETCH_EXAMPLES_DIGITS_DATA_H
#define ETCH_EXAMPLES_DIGITS_DATA_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>

enum { DIGITS_ROWS = 1797, DIGITS_PIXELS = 64, DIGITS_TEST_EVERY = 5 };

/* Parses 64 comma-separated numbers and the digit behind them. */
static inline bool digits_parse(const char *text, double *pixels, int64_t *digit) {
    char *end;
    for (int i = 0; i < DIGITS_PIXELS; i++) {
        pixels[i] = strtod(text, &end);
        if (end == text || *end != ',') return false;
        text = end + 1;
    }
    *digit = strtoll(text, &end, 10);
    return end != text && *digit >= 0 && *digit <= 9;
}

/* Reads all rows; says why not. */
static inline bool digits_read(const char *path, double *pixels, int64_t *digits) {
    char line[1024];
    int rows = 0;
    gzFile file = gzopen(path, "rb");
    while (file && rows < DIGITS_ROWS && gzgets(file, line, sizeof line) &&
           digits_parse(line, pixels + rows * DIGITS_PIXELS, digits + rows))
        rows++;
    if (file) gzclose(file);
    if (rows == DIGITS_ROWS) return true;
    fprintf(stderr, "%s: not readable as %d rows of %d pixels and a digit\n", path, DIGITS_ROWS,
            DIGITS_PIXELS);
    return false;
}

/* The rows that are for the test, or the others: pixels from 0 to 1, and digits. How many. */
static inline int64_t digits_choose(const double *pixels, const int64_t *digits, bool test,
                                    float *to, int64_t *answers) {
    int64_t n = 0;
    for (int row = 0; row < DIGITS_ROWS; row++) {
        if ((row % DIGITS_TEST_EVERY == 0) != test) continue;
        for (int i = 0; i < DIGITS_PIXELS; i++)
            to[n * DIGITS_PIXELS + i] = (float)(pixels[row * DIGITS_PIXELS + i] / 16);
        answers[n++] = digits[row];
    }
    return n;
}

#endif
