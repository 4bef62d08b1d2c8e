/* See lines.h.
 *
 * The section .debug_line is a list of units, each a program for a small machine whose rows say
 * from which address on which line of which file holds. A unit is read whole and its program run
 * until a row and the next one enclose the address. That takes a while in a large program, so where
 * sequences of rows lie is kept once a module was searched: later only one unit is read. */
#include "core/base/lines.h"

#include <stdlib.h>

/* ---- reading bytes ---- */

typedef struct reader {
    const uint8_t *p, *end;
    bool bad; /* ran over the end: what is read then is 0 */
} reader;

static uint64_t fixed(reader *r, size_t n) {
    uint64_t v = 0;
    if ((size_t)(r->end - r->p) < n) {
        r->bad = true, r->p = r->end;
        return 0;
    }
    for (size_t i = 0; i < n && i < 8; i++) v |= (uint64_t)r->p[i] << 8 * i;
    r->p += n;
    return v;
}

static uint64_t variable(reader *r, bool is_signed) {
    uint64_t v = 0, byte = 0x80;
    int shift = 0;
    for (; byte & 0x80 && !r->bad; shift += 7) {
        byte = fixed(r, 1);
        if (shift < 64) v |= (byte & 0x7f) << shift;
    }
    if (is_signed && byte & 0x40 && shift < 64) v |= ~(uint64_t)0 << shift;
    return v;
}

static const char *string(reader *r) {
    const char *s = (const char *)r->p;
    const uint8_t *zero = memchr(r->p, 0, (size_t)(r->end - r->p));
    if (!zero) return r->bad = true, r->p = r->end, "";
    r->p = zero + 1;
    return s;
}

/* ---- a unit's header ---- */

typedef struct unit {
    reader tables, program;
    const uint8_t *lengths; /* operands of each standard opcode */
    int version, offset_size, min_length, line_base, line_range, opcode_base;
} unit;

/* r stands behind the unit's length. */
static bool read_header(reader r, int offset_size, unit *u) {
    u->offset_size = offset_size;
    u->version = (int)fixed(&r, 2);
    if (u->version < 2 || u->version > 5) return false;
    if (u->version >= 5) fixed(&r, 2); /* sizes of addresses and selectors */
    uint64_t rest = fixed(&r, (size_t)offset_size);
    if (r.bad || rest > (uint64_t)(r.end - r.p)) return false;
    u->program = (reader){r.p + rest, r.end, false};
    r.end = r.p + rest;
    u->min_length = (int)fixed(&r, 1);
    if (u->version >= 4) fixed(&r, 1); /* operations of an instruction */
    fixed(&r, 1);                      /* is a statement */
    u->line_base = (int8_t)fixed(&r, 1);
    u->line_range = (int)fixed(&r, 1);
    u->opcode_base = (int)fixed(&r, 1);
    u->lengths = r.p;
    fixed(&r, u->opcode_base > 0 ? (size_t)u->opcode_base - 1 : 0);
    u->tables = r;
    return !r.bad && u->line_range > 0 && u->opcode_base > 0;
}

/* ---- names of files ---- */

enum { FORM_STRING = 8, FORM_STRP = 0x0e, FORM_LINE_STRP = 0x1f, FORM_UDATA = 0x0f };
enum { FORM_BLOCK = 9, FORM_DATA1 = 0x0b, FORM_DATA2 = 5, FORM_DATA4 = 6, FORM_DATA16 = 0x1e };
enum { CONTENT_PATH = 1, CONTENT_FOLDER = 2 };

/* What a text of a table is: it stands there, or at an offset of a section of texts. */
typedef struct text_place {
    const char *here, *section;
    uint64_t at;
} text_place;

static uint64_t read_form(reader *r, const unit *u, uint64_t form, text_place *text) {
    switch (form) {
    case FORM_STRING: return *text = (text_place){.here = string(r)}, 0;
    case FORM_STRP:
    case FORM_LINE_STRP:
        text->here = NULL, text->section = form == FORM_STRP ? ".debug_str" : ".debug_line_str";
        return text->at = fixed(r, (size_t)u->offset_size), 0;
    case FORM_UDATA: return variable(r, false);
    case FORM_DATA1: return fixed(r, 1);
    case FORM_DATA2: return fixed(r, 2);
    case FORM_DATA4: return fixed(r, 4);
    case FORM_DATA16: return fixed(r, 16);
    case FORM_BLOCK: return fixed(r, variable(r, false));
    default: r->bad = true; return 0;
    }
}

/* Entry `wanted` of a version 5 table; r goes behind the table. */
static bool read_entries(reader *r, const unit *u, uint64_t wanted, text_place *text,
                         uint64_t *folder) {
    uint64_t format[16][2], nformat = fixed(r, 1);
    bool found = false;
    if (nformat > COUNT_OF(format)) return false;
    for (uint64_t i = 0; i < nformat; i++)
        format[i][0] = variable(r, false), format[i][1] = variable(r, false);
    uint64_t n = variable(r, false);
    for (uint64_t k = 0; k < n && !r->bad; k++)
        for (uint64_t i = 0; i < nformat; i++) {
            text_place t = {0};
            uint64_t v = read_form(r, u, format[i][1], &t);
            if (k != wanted) continue;
            found = true;
            if (format[i][0] == CONTENT_PATH) *text = t;
            if (format[i][0] == CONTENT_FOLDER) *folder = v;
        }
    return found && !r->bad;
}

/* Entries of versions up to 4 are texts, numbered from 1; folder 0 is the compiler's own, which
 * these tables do not name. */
static bool read_old_folder(reader *r, uint64_t wanted, text_place *text) {
    bool found = false;
    for (uint64_t k = 1; !r->bad; k++) {
        const char *s = string(r);
        if (!*s) break;
        if (k == wanted) text->here = s, found = true;
    }
    return found;
}

static bool read_old_file(reader *r, uint64_t wanted, text_place *text, uint64_t *folder) {
    for (uint64_t k = 1; !r->bad; k++) {
        const char *s = string(r);
        if (!*s) return false;
        uint64_t in = variable(r, false);
        variable(r, false), variable(r, false); /* time, length */
        if (k == wanted) return text->here = s, *folder = in, !r->bad;
    }
    return false;
}

static bool find_file(const unit *u, uint64_t file, text_place *name, uint64_t *folder) {
    reader r = u->tables;
    text_place unused = {0};
    uint64_t none = 0;
    if (u->version < 5) {
        read_old_folder(&r, 0, &unused);
        return read_old_file(&r, file, name, folder);
    }
    read_entries(&r, u, UINT64_MAX, &unused, &none);
    return read_entries(&r, u, file, name, folder);
}

static bool find_folder(const unit *u, uint64_t folder, text_place *text) {
    reader r = u->tables;
    uint64_t none = 0;
    return u->version < 5 ? read_old_folder(&r, folder, text)
                          : read_entries(&r, u, folder, text, &none);
}

/* The place's text goes before what stands in path. */
static bool put_before(const module *m, const text_place *t, char *path, size_t n) {
    char text[512];
    Elf64_Shdr s;
    if (t->here) snprintf(text, sizeof text, "%s", t->here);
    else if (!t->section || !etch__module_section(m, t->section, &s) ||
             !etch__module_text(m, &s, t->at, text, sizeof text))
        return false;
    size_t had = strlen(path), more = strlen(text) + (had > 0);
    if (had + more >= n) return false;
    memmove(path + more, path, had + 1);
    memcpy(path, text, strlen(text));
    if (had) path[more - 1] = '/';
    return true;
}

static bool path_of_file(const module *m, const unit *u, uint64_t file, char *path, size_t n) {
    text_place name = {0}, in = {0}, base = {0};
    uint64_t folder = 0;
    *path = 0;
    if (!find_file(u, file, &name, &folder) || !put_before(m, &name, path, n)) return false;
    if (*path == '/' || !find_folder(u, folder, &in)) return true;
    if (!put_before(m, &in, path, n) || *path == '/') return true;
    if (folder && find_folder(u, 0, &base)) put_before(m, &base, path, n);
    return true;
}

/* ---- the program ---- */

enum { EXT_END = 1, EXT_ADDRESS = 2 };
enum { COPY = 1, ADVANCE_PC, ADVANCE_LINE, SET_FILE, CONST_ADD_PC = 8, FIXED_ADVANCE_PC = 9 };

typedef struct row {
    uint64_t address, file;
    int64_t line;
} row;

/* Called with each row and the one before it in its sequence; true ends the program. */
typedef bool (*row_visitor)(void *ctx, const row *before, const row *now, bool first, bool last);

typedef struct machine {
    row now, before;
    bool first; /* the next row begins a sequence */
    row_visitor visit;
    void *ctx;
} machine;

static const row at_start = {.file = 1, .line = 1};

static bool emit(machine *m, bool last) {
    bool stop = m->visit(m->ctx, &m->before, &m->now, m->first, last);
    int64_t line = m->now.line ? m->now.line : m->before.line; /* 0: the compiler's own code */
    uint64_t file = m->now.line ? m->now.file : m->before.file;
    m->before = (row){m->now.address, file, line};
    m->first = last;
    if (last) m->now = m->before = at_start;
    return stop;
}

static bool extended(reader *r, machine *m) {
    uint64_t n = variable(r, false);
    if (!n || n > (uint64_t)(r->end - r->p)) return r->bad = true;
    reader inner = {r->p, r->p + n, false};
    r->p += n;
    switch (fixed(&inner, 1)) {
    case EXT_END: return emit(m, true);
    case EXT_ADDRESS: m->now.address = fixed(&inner, n - 1 < 8 ? n - 1 : 8); return false;
    default: return false;
    }
}

static bool standard(reader *r, const unit *u, int op, machine *m) {
    row *now = &m->now;
    uint64_t min = (uint64_t)u->min_length;
    switch (op) {
    case COPY: return emit(m, false);
    case ADVANCE_PC: now->address += variable(r, false) * min; return false;
    case ADVANCE_LINE: now->line += (int64_t)variable(r, true); return false;
    case SET_FILE: now->file = variable(r, false); return false;
    case CONST_ADD_PC:
        now->address += (uint64_t)((255 - u->opcode_base) / u->line_range) * min;
        return false;
    case FIXED_ADVANCE_PC: now->address += fixed(r, 2); return false;
    default:
        for (int i = 0; i < u->lengths[op - 1]; i++) variable(r, false);
        return false;
    }
}

static void run(const unit *u, row_visitor visit, void *ctx) {
    machine m = {at_start, at_start, true, visit, ctx};
    reader r = u->program;
    for (bool stop = false; !stop && !r.bad && r.p < r.end;) {
        int op = (int)fixed(&r, 1), beyond = op - u->opcode_base;
        if (op == 0) stop = extended(&r, &m);
        else if (beyond < 0) stop = standard(&r, u, op, &m);
        else {
            m.now.address += (uint64_t)(beyond / u->line_range) * (uint64_t)u->min_length;
            m.now.line += u->line_base + beyond % u->line_range;
            stop = emit(&m, false);
        }
    }
}

/* ---- where sequences lie ---- */

typedef struct sequence {
    uint64_t begin, end, unit; /* addresses of the file; the unit's offset in the section */
} sequence;

typedef struct line_index {
    const void *headers; /* of the module; NULL: there is none yet */
    uint64_t bias, inode;
    sequence *s;
    int64_t n, cap;
    bool short_of_memory;
    uint64_t unit, begin; /* while it is made */
} line_index;

static bool note_sequence(void *ctx, const row *before, const row *now, bool first, bool last) {
    line_index *x = ctx;
    (void)before;
    if (first) x->begin = now->address;
    if (!last || now->address <= x->begin) return false;
    if (!etch__grow(&x->s, &x->cap, x->n + 1, sizeof *x->s)) return x->short_of_memory = true;
    x->s[x->n++] = (sequence){x->begin, now->address, x->unit};
    return false;
}

enum { UNIT_MAX = 1 << 28 };

/* The unit at an offset: its bytes, to be freed, and its header; *next is where the next one lies,
 * 0 behind the last. NULL with *next != 0: it cannot be read, others may. */
static uint8_t *read_unit(const module *m, const Elf64_Shdr *s, uint64_t at, unit *u,
                          uint64_t *next, bool *no_memory) {
    uint8_t head[12];
    *next = 0;
    if (s->sh_size - at < sizeof head ||
        !etch__module_read(m, s->sh_offset + at, head, sizeof head))
        return NULL;
    reader r = {head, head + sizeof head, false};
    uint64_t n = fixed(&r, 4);
    int offset_size = n == UINT32_MAX ? 8 : 4;
    if (offset_size == 8) n = fixed(&r, 8);
    uint64_t from = at + (offset_size == 8 ? 12 : 4);
    if (!n || n > s->sh_size - from || n > UNIT_MAX) return NULL;
    *next = from + n < s->sh_size ? from + n : 0;
    uint8_t *bytes = etch__malloc(n);
    *no_memory |= !bytes;
    if (bytes && etch__module_read(m, s->sh_offset + from, bytes, n) &&
        read_header((reader){bytes, bytes + n, false}, offset_size, u))
        return bytes;
    etch__free(bytes);
    return NULL;
}

static void make_index(const module *m, const Elf64_Shdr *s, line_index *x) {
    for (uint64_t at = 0, more = s->sh_size > 0, next; more && !x->short_of_memory;) {
        unit u;
        uint8_t *bytes = read_unit(m, s, at, &u, &next, &x->short_of_memory);
        x->unit = at;
        if (bytes) run(&u, note_sequence, x);
        etch__free(bytes);
        at = next, more = next != 0;
    }
}

/* The modules searched last; the caller holds a lock. */
enum { INDEXES = 8 };
static line_index indexes[INDEXES];
static int next_index;

static const line_index *index_of(const module *m, const Elf64_Shdr *s) {
    for (int i = 0; i < INDEXES; i++)
        if (indexes[i].headers == m->headers && indexes[i].bias == m->bias &&
            indexes[i].inode == m->inode)
            return &indexes[i];
    line_index x = {.headers = m->headers, .bias = m->bias, .inode = m->inode};
    make_index(m, s, &x);
    if (x.short_of_memory) return etch__free(x.s), NULL;
    line_index *place = &indexes[next_index++ % INDEXES];
    etch__free(place->s);
    *place = x;
    return place;
}

/* ---- the answer ---- */

typedef struct wanted {
    uint64_t address, file;
    int64_t line;
} wanted;

static bool encloses(void *ctx, const row *before, const row *now, bool first, bool last) {
    wanted *w = ctx;
    (void)last;
    if (first || w->address < before->address || w->address >= now->address) return false;
    w->file = before->file, w->line = before->line;
    return true;
}

static bool look_in(const module *m, const Elf64_Shdr *s, uint64_t at, wanted *w, char *path,
                    size_t n) {
    unit u;
    uint64_t next;
    bool no_memory = false;
    uint8_t *bytes = read_unit(m, s, at, &u, &next, &no_memory);
    if (bytes) run(&u, encloses, w);
    if (!bytes || !w->line || !path_of_file(m, &u, w->file, path, n)) w->line = 0;
    etch__free(bytes);
    return !no_memory;
}

bool etch__line_of(const module *m, const void *address, char *path, size_t n, int *number) {
    wanted w = {.address = (uint64_t)(uintptr_t)address - m->bias};
    Elf64_Shdr s;
    bool ok = true;
    *path = 0, *number = 0;
    if (!etch__module_section(m, ".debug_line", &s)) return true;
    const line_index *x = index_of(m, &s);
    for (int64_t i = 0; x && ok && !w.line && i < x->n; i++)
        if (w.address >= x->s[i].begin && w.address < x->s[i].end)
            ok = look_in(m, &s, x->s[i].unit, &w, path, n);
    if (w.line > 0 && w.line <= INT32_MAX) *number = (int)w.line;
    return x && ok;
}
