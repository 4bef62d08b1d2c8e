/* Files of named tensors: what is written is what is read, byte by byte and by the public Python
 * package; writing is all or nothing; files that lie are errors.
 * Labels: quick. */
#include "file_support.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

EACH_TEST(.before = fresh_folder)

/* Every dtype; 0-d, empty and strided ones. */
enum { TENSORS = 13 };
static etch_named_tensor sample[TENSORS];

static void make_sample(void) {
    static char dtype_names[ETCH_DTYPE_COUNT][16];
    etch_tensor *line = must(etch_arange(ETCH_F32, -3.0, 9.0, 1));
    etch_tensor *grid = must(etch_view(line, ETCH_SHAPE(3, 4)));
    for (int d = 0; d < ETCH_DTYPE_COUNT; d++) {
        snprintf(dtype_names[d], sizeof dtype_names[d], "a.%s", etch_dtype_name((etch_dtype)d));
        sample[d] = (etch_named_tensor){dtype_names[d], must(etch_to(grid, (etch_dtype)d))};
    }
    sample[10] =
        (etch_named_tensor){"turned \"\\\n\x01 \xc3\xa4 \xf0\x9f\x98\x80", must(etch_t(grid))};
    sample[11] = (etch_named_tensor){"empty", must(etch_zeros(ETCH_I64, ETCH_SHAPE(2, 0)))};
    sample[12] = (etch_named_tensor){"", must(etch_full(ETCH_F64, ETCH_SHAPE(), 0.1))};
}

static etch_safetensors *open_file(const char *path) { return must(etch_safetensors_load(path)); }

TEST(what_is_written_is_read) {
    const etch_named_text texts[] = {{"format", "etch"}, {"quoted", "a \"b\"\t\\"}};
    ETCH_SCOPE {
        make_sample();
        assert_int_equal(etch_safetensors_save(path_of("a"), sample, TENSORS, texts, 2), ETCH_OK);
        assert_int_equal(files_there(false), 1);
        etch_safetensors *f = open_file(path_of("a"));
        assert_int_equal(etch_safetensors_count(f), TENSORS);
        for (int i = 0; i < TENSORS; i++) {
            int k = etch_safetensors_find(f, sample[i].name);
            assert_true(k >= 0);
            assert_string_equal(etch_safetensors_name(f, k), sample[i].name);
            assert_int_equal(etch_safetensors_dtype(f, k), etch_dtype_of(sample[i].tensor));
            etch_tensor *t = must(etch_safetensors_tensor(f, k));
            assert_true(etch_bitwise_equal(t, sample[i].tensor));
            has_sizes(t, etch_safetensors_sizes(f, k));
        }
        assert_string_equal(etch_safetensors_text(f, "quoted"), "a \"b\"\t\\");
        assert_null(etch_safetensors_text(f, "none"));
        assert_int_equal(etch_safetensors_find(f, "a.f"), -1);
        assert_null(etch_safetensors_name(f, TENSORS));
        assert_int_equal(etch_safetensors_dtype(f, -1), ETCH_DTYPE_COUNT);
        assert_int_equal(etch_safetensors_sizes(f, TENSORS).n, 0);
        FAILED_WITH(!etch_safetensors_tensor(f, TENSORS), ETCH_ERR_INVALID_ARGUMENT, "below 13");
        etch_safetensors_free(f);
    }
}

TEST(no_tensors_at_all) {
    ETCH_SCOPE {
        assert_int_equal(etch_safetensors_save(path_of("a"), NULL, 0, NULL, 0), ETCH_OK);
        etch_safetensors *f = open_file(path_of("a"));
        assert_int_equal(etch_safetensors_count(f), 0);
        assert_int_equal(etch_safetensors_find(f, ""), -1);
        etch_safetensors_free(f);
    }
    assert_int_equal(etch_safetensors_count(NULL), 0);
    etch_safetensors_free(NULL);
}

/* The header is a multiple of 8 bytes and wider dtypes come first: every tensor is aligned. */
TEST(bytes_of_a_file) {
    ETCH_SCOPE {
        const uint8_t small[3] = {1, 2, 3};
        const double wide[1] = {0.5};
        const etch_named_tensor two[] = {
            {"s", must(etch_from_host(small, ETCH_U8, ETCH_SHAPE(3)))},
            {"w", must(etch_from_host(wide, ETCH_F64, ETCH_SHAPE(1, 1)))}};
        assert_int_equal(etch_safetensors_save(path_of("a"), two, 2, NULL, 0), ETCH_OK);
        const char *header = "{\"w\":{\"dtype\":\"F64\",\"shape\":[1,1],\"data_offsets\":[0,8]},"
                             "\"s\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]}}";
        size_t n, k = (strlen(header) + 7) / 8 * 8;
        char *bytes = read_bytes(path_of("a"), &n);
        assert_int_equal(n, 8 + k + 11);
        assert_int_equal((unsigned char)bytes[0], k);
        assert_memory_equal(bytes + 1, "\0\0\0\0\0\0\0", 7);
        assert_memory_equal(bytes + 8, header, strlen(header));
        for (size_t i = strlen(header); i < k; i++) assert_int_equal(bytes[8 + i], ' ');
        assert_memory_equal(bytes + 8 + k, wide, 8);
        assert_memory_equal(bytes + 8 + k + 8, small, 3);
        free(bytes);
    }
}

/* ---- writing is all or nothing ---- */

TEST(arguments_that_are_refused) {
    ETCH_SCOPE {
        etch_tensor *t = must(etch_ones(ETCH_F32, ETCH_SHAPE(2)));
        const etch_named_tensor bad[][2] = {{{"x", t}, {"x", t}},
                                            {{"__metadata__", t}, {"x", t}},
                                            {{"\xff", t}, {"x", t}},
                                            {{"\xed\xa0\x80", t}, {"x", t}}};
        const char *const words[] = {"'x' comes twice", "other than __metadata__", "UTF-8",
                                     "UTF-8"};
        write_bytes(path_of("a"), "old", 3);
        for (int i = 0; i < 4; i++)
            FAILED_WITH(etch_safetensors_save(path_of("a"), bad[i], 2, NULL, 0) != ETCH_OK,
                        ETCH_ERR_INVALID_ARGUMENT, words[i]);
        const etch_named_tensor nothing = {"x", NULL}, fine = {"x", t};
        const etch_named_text text = {"t", "\xc0\x80"}, twice[] = {{"t", ""}, {"t", ""}};
        FAILED_WITH(etch_safetensors_save(path_of("a"), &nothing, 1, NULL, 0) != ETCH_OK,
                    ETCH_ERR_NULL, "etch_safetensors_save");
        FAILED_WITH(etch_safetensors_save(path_of("a"), &fine, 1, &text, 1) != ETCH_OK,
                    ETCH_ERR_INVALID_ARGUMENT, "the text 't' is not UTF-8");
        FAILED_WITH(etch_safetensors_save(path_of("a"), &fine, 1, twice, 2) != ETCH_OK,
                    ETCH_ERR_INVALID_ARGUMENT, "'t' comes twice");
        FAILED_WITH(etch_safetensors_save(NULL, &fine, 1, NULL, 0) != ETCH_OK, ETCH_ERR_NULL, "");
        FAILED_WITH(etch_safetensors_save(path_of("no/a"), &fine, 1, NULL, 0) != ETCH_OK,
                    ETCH_ERR_IO, "No such file");
        FAILED_WITH(etch_safetensors_save(file_folder, &fine, 1, NULL, 0) != ETCH_OK, ETCH_ERR_IO,
                    file_folder);
        size_t n;
        char *bytes = read_bytes(path_of("a"), &n);
        assert_int_equal(n, 3);
        assert_memory_equal(bytes, "old", 3);
        free(bytes);
        assert_int_equal(files_there(false), 1);
    }
}

/* A disk that is full, as far as the process can tell: the old file stays, and nothing else. */
TEST(a_write_that_fails_halfway) {
    ETCH_SCOPE {
        write_bytes(path_of("a"), "old", 3);
        const etch_named_tensor t = {"x", must(etch_ones(ETCH_F32, ETCH_SHAPE(5000)))};
        pid_t child = fork();
        if (!child) {
            const struct rlimit small = {4096, 4096};
            signal(SIGXFSZ, SIG_IGN);
            setrlimit(RLIMIT_FSIZE, &small);
            etch_status status = etch_safetensors_save(path_of("a"), &t, 1, NULL, 0);
            _exit(status == ETCH_ERR_IO && strstr(etch_last_error(), "File too large") ? 0 : 1);
        }
        int status = -1;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        size_t n;
        char *bytes = read_bytes(path_of("a"), &n);
        assert_int_equal(n, 3);
        free(bytes);
        assert_int_equal(files_there(false), 1);
    }
}

/* Inside a compiled function it is a break, and sees what was computed before. */
static etch_tensor *save_inside(etch_tensor *x) {
    etch_tensor *y = etch_add_scalar(x, 1.0);
    const etch_named_tensor t = {"y", y};
    if (etch_safetensors_save(path_of("a"), &t, 1, NULL, 0) != ETCH_OK) return NULL;
    return etch_mul(y, y);
}

TEST(saving_inside_a_compiled_function) {
    ETCH_SCOPE {
        etch_function *f = must(etch_compile(save_inside));
        for (int i = 0; i < 3; i++) {
            etch_tensor *x = must(etch_full(ETCH_F32, ETCH_SHAPE(4), (double)i));
            near_values(etch_call(f, x),
                        (double[]){(i + 1) * (i + 1), (i + 1) * (i + 1), (i + 1) * (i + 1),
                                   (i + 1) * (i + 1)},
                        0);
            etch_safetensors *file = open_file(path_of("a"));
            near_values(etch_safetensors_tensor(file, 0), (double[]){i + 1, i + 1, i + 1, i + 1},
                        0);
            etch_safetensors_free(file);
        }
        etch_function_free(f);
    }
}

/* ---- files that lie ---- */

#define T(dtype, shape, place)                                                                     \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" place "}"

static const struct lie {
    const char *header;
    size_t bytes;
    etch_status status;
    const char *words;
} lies[] = {
    {"", 0, ETCH_ERR_FORMAT, "does not begin with '{'"},
    {" {}", 0, ETCH_ERR_FORMAT, "does not begin with '{'"},
    {"[]", 0, ETCH_ERR_FORMAT, "does not begin with '{'"},
    {"{", 0, ETCH_ERR_FORMAT, "expected a string"},
    {"{}x", 0, ETCH_ERR_FORMAT, "something behind"},
    {"{}", 1, ETCH_ERR_FORMAT, "bytes behind the last tensor"},
    {"{\"a\":" T("U8", "[4]", "[0,4]") "}", 5, ETCH_ERR_FORMAT, "bytes behind the last tensor"},
    {"{\"a\":" T("U8", "[4]", "[0,4]") "}", 3, ETCH_ERR_FORMAT, "outside of the file (tensor 'a')"},
    {"{\"a\":" T("U8", "[4]", "[4,0]") "}", 4, ETCH_ERR_FORMAT, "outside of the file"},
    {"{\"a\":" T("U8", "[4]", "[1,5]") "}", 5, ETCH_ERR_FORMAT, "a hole before a tensor"},
    {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[3,5]") "}", 5, ETCH_ERR_FORMAT,
     "a hole before a tensor (tensor 'b')"},
    {"{\"a\":" T("U8", "[3]", "[0,3]") ",\"b\":" T("U8", "[3]", "[2,5]") "}", 5, ETCH_ERR_FORMAT,
     "two tensors overlap (tensor 'b')"},
    {"{\"a\":" T("U8", "[3]", "[0,3]") ",\"b\":" T("U8", "[3]", "[0,3]") "}", 3, ETCH_ERR_FORMAT,
     "two tensors overlap"},
    {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"a\":" T("U8", "[2]", "[2,4]") "}", 4, ETCH_ERR_FORMAT,
     "a name comes twice (tensor 'a')"},
    {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"\\u0061\":" T("U8", "[2]", "[2,4]") "}", 4,
     ETCH_ERR_FORMAT, "a name comes twice"},
    {"{\"a\":" T("F32", "[2]", "[0,7]") "}", 7, ETCH_ERR_FORMAT, "not the bytes of its sizes"},
    {"{\"a\":" T("F32", "[0]", "[0,4]") "}", 4, ETCH_ERR_FORMAT, "not the bytes of its sizes"},
    {"{\"a\":" T("F64", "[4294967296,4294967296]", "[0,8]") "}", 8, ETCH_ERR_FORMAT, "63 bits"},
    {"{\"a\":" T("U8", "[9223372036854775807,2]", "[0,8]") "}", 8, ETCH_ERR_FORMAT, "63 bits"},
    {"{\"a\":" T("U8", "[9223372036854775808]", "[0,8]") "}", 8, ETCH_ERR_FORMAT, "above 2^63"},
    {"{\"a\":" T("U8", "[-1]", "[0,1]") "}", 1, ETCH_ERR_FORMAT, "not negative"},
    {"{\"a\":" T("U8", "[1.0]", "[0,1]") "}", 1, ETCH_ERR_FORMAT, "whole number"},
    {"{\"a\":" T("U8", "[1e0]", "[0,1]") "}", 1, ETCH_ERR_FORMAT, "whole number"},
    {"{\"a\":" T("U8", "[01]", "[0,1]") "}", 1, ETCH_ERR_FORMAT, "whole number"},
    {"{\"a\":" T("U8", "[1,]", "[0,1]") "}", 1, ETCH_ERR_FORMAT, "whole number"},
    {"{\"a\":" T("U8", "[1]", "[0,1,2]") "}", 1, ETCH_ERR_FORMAT, "closing bracket"},
    {"{\"a\":" T("U8", "[1]", "[0]") "}", 1, ETCH_ERR_FORMAT, "expected ','"},
    {"{\"a\":" T("U8", "[[1]]", "[0,1]") "}", 1, ETCH_ERR_FORMAT, "whole number"},
    {"{\"a\":" T("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, ETCH_ERR_UNSUPPORTED,
     "more than 8 dimensions"},
    {"{\"a\":" T("F8_E4M3", "[1]", "[0,1]") "}", 1, ETCH_ERR_UNSUPPORTED, "'F8_E4M3'"},
    {"{\"a\":" T("f32", "[1]", "[0,4]") "}", 4, ETCH_ERR_UNSUPPORTED, "'f32'"},
    {"{\"a\":" T("", "[1]", "[0,4]") "}", 4, ETCH_ERR_UNSUPPORTED, "dtype ''"},
    {"{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, ETCH_ERR_FORMAT, "a string"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, ETCH_ERR_FORMAT, "is not there"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     ETCH_ERR_FORMAT, "a field twice"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":{}}}", 1, ETCH_ERR_FORMAT,
     "a field that there is not"},
    {"{\"a\":[]}", 0, ETCH_ERR_FORMAT, "expected '{'"},
    {"{\"a\":null}", 0, ETCH_ERR_FORMAT, "expected '{'"},
    {"{\"a\" " T("U8", "[1]", "[0,1]") "}", 1, ETCH_ERR_FORMAT, "expected ':'"},
    {"{\"a\":" T("U8", "[1]", "[0,1]") " \"b\":" T("U8", "[1]", "[1,2]") "}", 2, ETCH_ERR_FORMAT,
     "expected ','"},
    {"{\"a\":" T("U8", "[1]", "[0,1]") ",}", 1, ETCH_ERR_FORMAT, "a string"},
    {"{\"a\":" T("U8", "[1]", "[0,1]"), 1, ETCH_ERR_FORMAT, "expected ','"},
    {"{\"\xff\":" T("U8", "[1]", "[0,1]") "}", 1, ETCH_ERR_FORMAT, "not UTF-8"},
    {"{\"\xc0\xaf\":" T("U8", "[1]", "[0,1]") "}", 1, ETCH_ERR_FORMAT, "not UTF-8"},
    {"{\"\xe2\x82\":" T("U8", "[1]", "[0,1]") "}", 1, ETCH_ERR_FORMAT, "not UTF-8"},
    {"{\"\xf4\x90\x80\x80\":" T("U8", "[1]", "[0,1]") "}", 1, ETCH_ERR_FORMAT, "not UTF-8"},
    {"{\"\\ud800\":" T("U8", "[1]", "[0,1]") "}", 1, ETCH_ERR_FORMAT, "surrogate"},
    {"{\"\\udc00\\ud800\":" T("U8", "[1]", "[0,1]") "}", 1, ETCH_ERR_FORMAT, "surrogate"},
    {"{\"\\u12g4\":" T("U8", "[1]", "[0,1]") "}", 1, ETCH_ERR_FORMAT, "hexadecimal"},
    {"{\"\\u0000\":" T("U8", "[1]", "[0,1]") "}", 1, ETCH_ERR_FORMAT, "NUL"},
    {"{\"\\x\":" T("U8", "[1]", "[0,1]") "}", 1, ETCH_ERR_FORMAT, "escape"},
    {"{\"\n\":" T("U8", "[1]", "[0,1]") "}", 1, ETCH_ERR_FORMAT, "control character"},
    {"{\"a", 0, ETCH_ERR_FORMAT, "no end"},
    {"{\"a\\", 0, ETCH_ERR_FORMAT, "escape"},
    {"{\"__metadata__\":{\"a\":1}}", 0, ETCH_ERR_FORMAT, "a string"},
    {"{\"__metadata__\":[]}", 0, ETCH_ERR_FORMAT, "expected '{'"},
    {"{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}", 0, ETCH_ERR_FORMAT, "comes twice"},
    {"{\"__metadata__\":{\"a\":\"\"},\"__metadata__\":{}}", 0, ETCH_ERR_FORMAT, "comes twice"},
};

TEST(headers_that_lie) {
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        const char *path = make_file(lies[i].header, lies[i].bytes);
        etch_clear_error();
        etch_safetensors *f = etch_safetensors_load(path);
        if (f || etch_last_status() != lies[i].status || !strstr(etch_last_error(), lies[i].words))
            fail_msg("%s: %s: %s", lies[i].header, f ? "opened" : "refused", etch_last_error());
    }
    etch_clear_error();
}

/* What stands beside the lies, and is no lie. */
TEST(headers_that_are_odd) {
    static const struct {
        const char *header, *name;
        size_t bytes;
    } rows[] = {{"{ \"a\" :\t" T("U8", "[ 2 , 1 ]", "[ 0 , 2 ]") "\n}  \r\n", "a", 2},
                {"{\"b\":" T("U8", "[2]", "[2,4]") ",\"a\":" T("U8", "[2]", "[0,2]") "}", "a", 4},
                {"{\"z\":" T("F32", "[0]", "[2,2]") ",\"a\":" T("U8", "[2]", "[0,2]") "}", "z", 2},
                {"{\"z\":" T("F32", "[9223372036854775807,0,4]", "[0,0]") "}", "z", 0},
                {"{\"\\u00e4\\ud83d\\ude00\\/\":" T("BOOL", "[]", "[0,1]") "}",
                 "\xc3\xa4\xf0\x9f\x98\x80/", 1},
                {"{\"a\":{\"data_offsets\":[0,1],\"shape\":[1],\"dtype\":\"I8\"}}", "a", 1},
                {"{\"__metadata__\":{},\"a\":" T("U8", "[1]", "[0,1]") "}", "a", 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        etch_safetensors *f = open_file(make_file(rows[i].header, rows[i].bytes));
        assert_true(etch_safetensors_find(f, rows[i].name) >= 0);
        etch_safetensors_free(f);
    }
}

static void put_length(uint64_t n, size_t bytes) {
    char all[64] = {0};
    for (int i = 0; i < 8; i++) all[i] = (char)(n >> 8 * i);
    write_bytes(path_of("a"), all, bytes);
}

TEST(lengths_that_lie) {
    const uint64_t lengths[] = {100, UINT64_MAX, (uint64_t)1 << 63, 100000001, 57};
    for (int i = 0; i < 5; i++) {
        put_length(lengths[i], 64);
        FAILED_WITH(!etch_safetensors_load(path_of("a")), ETCH_ERR_FORMAT, "a header of");
    }
    for (size_t n = 0; n < 8; n++) {
        put_length(2, n);
        FAILED_WITH(!etch_safetensors_load(path_of("a")), ETCH_ERR_FORMAT, "8 bytes");
    }
    FAILED_WITH(!etch_safetensors_load(path_of("none")), ETCH_ERR_IO, "No such file");
    FAILED_WITH(!etch_safetensors_load(file_folder), ETCH_ERR_IO, "regular file");
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    FAILED_WITH(!etch_safetensors_load(path_of("pipe")), ETCH_ERR_IO, "regular file");
    FAILED_WITH(!etch_safetensors_load("/dev/zero"), ETCH_ERR_IO, "regular file");
    FAILED_WITH(!etch_safetensors_load(NULL), ETCH_ERR_NULL, "etch_safetensors_load");
}

/* Every file that is cut off somewhere is refused, and so is every one with a byte of its header
 * changed that is not read as the same tensors. Nothing worse happens. */
TEST(damaged_files) {
    ETCH_SCOPE {
        make_sample();
        assert_int_equal(etch_safetensors_save(path_of("a"), sample, TENSORS, NULL, 0), ETCH_OK);
        size_t n;
        char *bytes = read_bytes(path_of("a"), &n);
        for (size_t k = 0; k < n; k++) {
            write_bytes(path_of("b"), bytes, k);
            FAILED_WITH(!etch_safetensors_load(path_of("b")), ETCH_ERR_FORMAT, "");
        }
        for (size_t k = 0; k < 700; k++) {
            char was = bytes[k];
            bytes[k] = (char)(was ^ (1 << k % 8));
            write_bytes(path_of("b"), bytes, n);
            etch_safetensors *f = etch_safetensors_load(path_of("b"));
            for (int i = 0; i < etch_safetensors_count(f); i++)
                ETCH_SCOPE { etch_safetensors_tensor(f, i); }
            etch_safetensors_free(f);
            bytes[k] = was;
        }
        free(bytes);
        etch_clear_error();
    }
}

TEST(data_that_lies) {
    ETCH_SCOPE {
        etch_safetensors *f = open_file(make_file("{\"a\":" T("BOOL", "[4]", "[0,4]") "}", 4));
        near_values(etch_safetensors_tensor(f, 0), (double[]){1, 1, 1, 1}, 0);
        FILE *raw = must(fopen(path_of("made"), "r+b"));
        fseek(raw, -1, SEEK_END);
        fputc(2, raw);
        fclose(raw);
        FAILED_WITH(!etch_safetensors_tensor(f, 0), ETCH_ERR_FORMAT, "neither 0 nor 1");
        assert_int_equal(truncate(path_of("made"), 60), 0);
        FAILED_WITH(!etch_safetensors_tensor(f, 0), ETCH_ERR_IO, "shorter");
        etch_safetensors_free(f);
    }
}

/* ---- the public package ---- */

/* Python with the package, in ETCH_TEST_PYTHON or by name; skips where it is not there. */
static void python(const char *program) {
    const char *name = getenv("ETCH_TEST_PYTHON");
    char command[4096];
    if (!name) name = "python3";
    snprintf(command, sizeof command, "%s -c 'import safetensors.numpy' 2>/dev/null", name);
    if (system(command) != 0) skip();
    write_bytes(path_of("program.py"), program, strlen(program));
    snprintf(command, sizeof command, "cd %s && %s program.py", file_folder, name);
    assert_int_equal(system(command), 0);
}

TEST(python_reads_what_is_written) {
    ETCH_SCOPE {
        const etch_named_text text = {"note", "a \"b\""};
        make_sample();
        assert_int_equal(etch_safetensors_save(path_of("a"), sample, TENSORS, &text, 1), ETCH_OK);
        python("import safetensors, struct\n"
               "with open('a', 'rb') as f: raw = f.read()\n"
               "all = dict(safetensors.deserialize(raw))\n"
               "assert len(all) == 13, len(all)\n"
               "line = [x - 3.0 for x in range(12)]\n"
               "def is_(name, dtype, shape, data):\n"
               "    t = all[name]\n"
               "    assert t['dtype'] == dtype and t['shape'] == shape, (name, t)\n"
               "    assert bytes(t['data']) == data, (name, bytes(t['data']), data)\n"
               "is_('a.f32', 'F32', [3, 4], struct.pack('<12f', *line))\n"
               "is_('a.f64', 'F64', [3, 4], struct.pack('<12d', *line))\n"
               "is_('a.f16', 'F16', [3, 4], struct.pack('<12e', *line))\n"
               "half = b''.join(struct.pack('<f', x)[2:] for x in line)\n"
               "is_('a.bf16', 'BF16', [3, 4], half)\n"
               "for n, c in (('8', 'b'), ('16', 'h'), ('32', 'i'), ('64', 'q')):\n"
               "    is_('a.i' + n, 'I' + n, [3, 4], struct.pack('<12' + c, *map(int, line)))\n"
               "is_('a.bool', 'BOOL', [3, 4], bytes(x != 0 for x in line))\n"
               "turned = [line[r * 4 + c] for c in range(4) for r in range(3)]\n"
               "is_('turned \"\\\\\\n\\x01 \\u00e4 \\U0001f600', 'F32', [4, 3], "
               "struct.pack('<12f', *turned))\n"
               "is_('empty', 'I64', [2, 0], b'')\n"
               "is_('', 'F64', [], struct.pack('<d', 0.1))\n"
               "with safetensors.safe_open('a', framework='np') as f:\n"
               "    assert f.metadata() == {'note': 'a \"b\"'}, f.metadata()\n");
    }
}

TEST(python_writes_what_is_read) {
    python("import numpy as n, safetensors.numpy\n"
           "safetensors.numpy.save_file({\n"
           "    'f': n.array([[1, 2], [3, -4.5]], n.float32),\n"
           "    'h': n.array([-2], n.float16),\n"
           "    'i': n.array(-7, n.int64),\n"
           "    'u': n.array([3, 250], n.uint8),\n"
           "    'o': n.array([False, True]),\n"
           "    'e \\u00e4': n.zeros((0, 5), n.float64),\n"
           "}, 'p', metadata={'who': 'python'})\n");
    ETCH_SCOPE {
        etch_safetensors *f = open_file(path_of("p"));
        assert_int_equal(etch_safetensors_count(f), 6);
        assert_string_equal(etch_safetensors_text(f, "who"), "python");
        const struct {
            const char *name;
            etch_dtype dtype;
            double v[4];
        } want[] = {{"f", ETCH_F32, {1, 2, 3, -4.5}},
                    {"h", ETCH_F16, {-2}},
                    {"i", ETCH_I64, {-7}},
                    {"u", ETCH_U8, {3, 250}},
                    {"o", ETCH_BOOL, {0, 1}},
                    {"e \xc3\xa4", ETCH_F64, {0}}};
        for (int i = 0; i < 6; i++) {
            etch_tensor *t =
                must(etch_safetensors_tensor(f, etch_safetensors_find(f, want[i].name)));
            assert_int_equal(etch_dtype_of(t), want[i].dtype);
            const double *have = values(t);
            for (int64_t k = 0; k < etch_numel(t); k++) assert_true(have[k] == want[i].v[k]);
        }
        etch_safetensors_free(f);
    }
}

TEST(the_folder_goes, .last = true) { remove_folder(); }
