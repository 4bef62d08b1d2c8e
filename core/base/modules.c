/* See modules.h. */
#include "core/base/modules.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what is loaded ---- */

typedef struct search {
    uint64_t address;
    module *m;
    const ElfW(Phdr) * headers;
    int nheaders;
    char path[1024];
} search;

static int holds(struct dl_phdr_info *info, size_t size, void *ctx) {
    search *s = ctx;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        uint64_t begin = info->dlpi_addr + h->p_vaddr;
        if (h->p_type != PT_LOAD || s->address < begin || s->address - begin >= h->p_memsz)
            continue;
        *s->m = (module){.headers = info->dlpi_phdr, .bias = info->dlpi_addr, .fd = -1};
        s->headers = info->dlpi_phdr, s->nheaders = info->dlpi_phnum;
        snprintf(s->path, sizeof s->path, "%s",
                 *info->dlpi_name ? info->dlpi_name : "/proc/self/exe");
        return 1;
    }
    return 0;
}

/* ---- the file ---- */

bool etch__module_read(const module *m, uint64_t at, void *to, size_t n) {
    for (char *p = to; n;) {
        ssize_t got = pread(m->fd, p, n, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        p += got, at += (uint64_t)got, n -= (size_t)got;
    }
    return true;
}

/* A library that was installed anew has other addresses than the one that is loaded. */
static bool same_headers(const module *m, const search *s, const Elf64_Ehdr *e) {
    if (e->e_phentsize != sizeof(Elf64_Phdr) || e->e_phnum != s->nheaders) return false;
    for (int i = 0; i < s->nheaders; i++) {
        Elf64_Phdr h;
        if (!etch__module_read(m, e->e_phoff + (uint64_t)i * sizeof h, &h, sizeof h)) return false;
        if (memcmp(&h, &s->headers[i], sizeof h) != 0) return false;
    }
    return true;
}

static bool read_headers(module *m, const search *s) {
    Elf64_Ehdr e;
    Elf64_Shdr first, names;
    if (!etch__module_read(m, 0, &e, sizeof e) || memcmp(e.e_ident, ELFMAG, SELFMAG) != 0)
        return false;
    if (e.e_ident[EI_CLASS] != ELFCLASS64 || !same_headers(m, s, &e)) return false;
    if (e.e_shentsize != sizeof first || !etch__module_read(m, e.e_shoff, &first, sizeof first))
        return false;
    uint64_t count = e.e_shnum ? e.e_shnum : first.sh_size;
    uint64_t at = e.e_shstrndx == SHN_XINDEX ? first.sh_link : e.e_shstrndx;
    if (count > 1 << 20 || at >= count) return false;
    m->sections = e.e_shoff, m->nsections = (int)count;
    if (!etch__module_read(m, e.e_shoff + at * sizeof names, &names, sizeof names)) return false;
    m->names = names.sh_offset;
    return true;
}

static bool open_file(module *m, const search *s) {
    struct stat st;
    m->fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    bool ok = m->fd >= 0 && fstat(m->fd, &st) == 0 && S_ISREG(st.st_mode) && read_headers(m, s);
    if (ok) m->inode = st.st_ino;
    else etch__module_close(m);
    return ok;
}

bool etch__module_open(const void *address, module *m) {
    search s = {.address = (uint64_t)(uintptr_t)address, .m = m};
    return dl_iterate_phdr(holds, &s) && open_file(m, &s);
}

void etch__module_close(module *m) {
    if (m->fd >= 0) close(m->fd);
    m->fd = -1;
}

/* ---- sections ---- */

bool etch__module_text(const module *m, const Elf64_Shdr *s, uint64_t at, char *text, size_t n) {
    if (!n || at >= s->sh_size) return false;
    size_t room = s->sh_size - at < n ? (size_t)(s->sh_size - at) : n;
    if (!etch__module_read(m, s->sh_offset + at, text, room)) return false;
    text[room - 1] = 0;
    return true;
}

bool etch__module_section(const module *m, const char *name, Elf64_Shdr *s) {
    const Elf64_Shdr names = {.sh_offset = m->names, .sh_size = UINT32_MAX};
    char text[32];
    for (int i = 1; i < m->nsections; i++) {
        if (!etch__module_read(m, m->sections + (uint64_t)i * sizeof *s, s, sizeof *s))
            return false;
        size_t n = strlen(name) + 1;
        if (s->sh_type == SHT_NOBITS || s->sh_flags & SHF_COMPRESSED) continue;
        if (etch__module_text(m, &names, s->sh_name, text, n) && !memcmp(text, name, n - 1))
            if (etch__module_read(m, m->names + s->sh_name + n - 1, text, 1) && !*text) return true;
    }
    return false;
}

/* ---- symbols ---- */

/* The innermost function around the address. */
static bool best_symbol(const module *m, const Elf64_Shdr *table, uint64_t address,
                        Elf64_Sym *best) {
    Elf64_Sym part[32];
    bool found = false;
    uint64_t n = table->sh_size / sizeof *part;
    for (uint64_t i = 0; i < n; i += COUNT_OF(part)) {
        uint64_t count = n - i < COUNT_OF(part) ? n - i : COUNT_OF(part);
        if (!etch__module_read(m, table->sh_offset + i * sizeof *part, part, count * sizeof *part))
            return false;
        for (uint64_t k = 0; k < count; k++) {
            const Elf64_Sym *s = &part[k];
            int type = ELF64_ST_TYPE(s->st_info);
            if ((type != STT_FUNC && type != STT_GNU_IFUNC) || s->st_shndx == SHN_UNDEF) continue;
            if (address < s->st_value || address - s->st_value >= s->st_size) continue;
            if (!found || s->st_value > best->st_value) *best = *s, found = true;
        }
    }
    return found;
}

bool etch__module_symbol(const module *m, const void *address, char *text, size_t n) {
    static const char *const tables[] = {".symtab", ".dynsym"};
    uint64_t at = (uint64_t)(uintptr_t)address - m->bias;
    Elf64_Shdr table, names;
    Elf64_Sym s = {0};
    for (int i = 0; i < COUNT_OF(tables); i++) {
        if (!etch__module_section(m, tables[i], &table) || table.sh_link >= (uint32_t)m->nsections)
            continue;
        if (best_symbol(m, &table, at, &s) &&
            etch__module_read(m, m->sections + table.sh_link * sizeof names, &names,
                              sizeof names) &&
            etch__module_text(m, &names, s.st_name, text, n))
            return true;
    }
    return false;
}
