/* Names of captured tensors in a file: those that the user gives, those of a module, numbers. */
#include "export/file.h"

static const char *name_in_module(const etch_module *m, const etch_tensor *t) {
    for (int i = 0; i < etch_module_parameter_count(m); i++)
        if (etch_module_parameter_at(m, i) == t) return etch_module_parameter_name(m, i);
    for (int i = 0; i < etch_module_buffer_count(m); i++)
        if (etch_module_buffer_at(m, i) == t) return etch_module_buffer_name(m, i);
    return NULL;
}

static const char *given_name(const etch_export_options *o, const etch_tensor *t) {
    for (int i = 0; i < o->nnames; i++)
        if (o->names[i].tensor == t) return o->names[i].name;
    return o->module ? name_in_module(o->module, t) : NULL;
}

bool etch__name_captures(const exported *e, const etch_export_options *options) {
    for (int i = 0; i < e->p->ncaptures; i++) {
        char number[32];
        snprintf(number, sizeof number, "captured.%d", i);
        const char *name = given_name(options, e->captured[i]);
        if (name && !strcmp(name, FILE_CODE))
            return etch__false_at(NULL, ETCH_ERR_INVALID_ARGUMENT,
                                  "etch_export: a tensor cannot have the name '%s'", name);
        e->p->captures[i].name = etch__strdup(name ? name : number);
        if (!e->p->captures[i].name) return false;
    }
    return true;
}
