/* Modules in files: state by name, strictly or not, with reports; tied tensors; whole modules made
 * anew, of the ready-made types and of the user's; files that do not fit leave the module as it
 * was. The seed's tests of saving compiled modules are among them.
 * Labels: quick. */
#include "file_support.h"

EACH_TEST(.before = fresh_folder)

static etch_module *toy(void) {
    etch_module *layers[2] = {etch_nn_linear(10, 10, ETCH_F32), etch_nn_relu()};
    return must(etch_nn_sequential(layers, 2));
}

static etch_tensor *same_input(void) {
    etch_manual_seed(3);
    return must(etch_randn(ETCH_F32, ETCH_SHAPE(4, 10)));
}

/* ---- the seed's rows ---- */

TEST(a_compiled_module_is_saved_and_made_again) {
    ETCH_SCOPE {
        etch_module *m = toy();
        assert_int_equal(etch_module_compile(m), ETCH_OK);
        etch_tensor *x = same_input(), *y = must(etch_module_call(m, x));
        assert_int_equal(etch_module_save(m, path_of("m")), ETCH_OK);
        etch_module *made = must(etch_module_from_file(path_of("m")));
        assert_null(etch_module_is_compiled(made));
        assert_string_equal(etch_module_type(made), "Sequential");
        assert_true(etch_bitwise_equal(etch_module_call(made, x), y));
        assert_int_equal(etch_module_compile(made), ETCH_OK);
        assert_true(etch_bitwise_equal(etch_module_call(made, x), y));
        etch_module_free(m);
        etch_module_free(made);
    }
}

TEST(the_state_of_a_compiled_module) {
    ETCH_SCOPE {
        etch_module *m = toy(), *other = toy();
        etch_tensor *x = same_input(), *y, *w = etch_module_parameter(other, "0.weight");
        assert_int_equal(etch_module_compile(m), ETCH_OK);
        assert_int_equal(etch_module_compile(other), ETCH_OK);
        y = must(etch_module_call(m, x));
        assert_false(etch_bitwise_equal(etch_module_call(other, x), y));
        assert_int_equal(etch_module_save(m, path_of("m")), ETCH_OK);
        etch_safetensors *f = must(etch_safetensors_load(path_of("m")));
        assert_int_equal(etch_safetensors_count(f), 2);
        assert_true(etch_safetensors_find(f, "0.weight") >= 0);
        assert_true(etch_safetensors_find(f, "0.bias") >= 0);
        etch_safetensors_free(f);
        assert_int_equal(etch_module_load(other, path_of("m"), true), ETCH_OK);
        assert_true(etch_bitwise_equal(etch_module_call(other, x), y));
        assert_ptr_equal(etch_module_parameter(other, "0.weight"), w);
        assert_true(etch_requires_grad(w) && etch_is_leaf(w));
        assert_int_equal(etch_function_counters(etch_module_is_compiled(other)).graphs, 1);
        etch_module_free(m);
        etch_module_free(other);
    }
}

/* ---- names ---- */

static void named(char **names, int n, const char *const *want, int count) {
    assert_int_equal(n, count);
    for (int i = 0; i < n; i++) assert_string_equal(names[i], want[i]);
}

/* What of "missing" differs after a failed or partial load is nothing. */
TEST(strict_and_not) {
    ETCH_SCOPE {
        etch_module *m = toy(), *before;
        etch_tensor *t = must(etch_full(ETCH_F32, ETCH_SHAPE(10), 7.0));
        const etch_named_tensor some[] = {{"0.bias", t}, {"0.bais", t}, {"1.x", t}};
        etch_load_report r;
        assert_int_equal(etch_safetensors_save(path_of("s"), some, 3, NULL, 0), ETCH_OK);
        before = must(etch_module_copy(m));
        FAILED_WITH(etch_module_load(m, path_of("s"), true) != ETCH_OK, ETCH_ERR_NOT_FOUND,
                    "missing 0.weight; unexpected 0.bais, 1.x");
        assert_int_equal(etch_module_load_report(m, path_of("s"), true, &r), ETCH_ERR_NOT_FOUND);
        named(r.missing, r.nmissing, (const char *[]){"0.weight"}, 1);
        etch_load_report_free(&r);
        assert_int_equal(r.nmissing, 0);
        same_tensors(m, before);
        assert_int_equal(etch_module_load_report(m, path_of("s"), false, &r), ETCH_OK);
        named(r.missing, r.nmissing, (const char *[]){"0.weight"}, 1);
        named(r.unexpected, r.nunexpected, (const char *[]){"0.bais", "1.x"}, 2);
        etch_load_report_free(&r);
        assert_true(etch_bitwise_equal(etch_module_parameter(m, "0.bias"), t));
        assert_true(etch_bitwise_equal(etch_module_parameter(m, "0.weight"),
                                       etch_module_parameter(before, "0.weight")));
        etch_module_free(m);
        etch_module_free(before);
    }
    etch_load_report_free(NULL);
}

TEST(long_lists_are_shortened) {
    ETCH_SCOPE {
        etch_module *m = must(etch_nn_lstm_cell(2, 2, ETCH_F32));
        assert_int_equal(etch_safetensors_save(path_of("s"), NULL, 0, NULL, 0), ETCH_OK);
        FAILED_WITH(etch_module_load(m, path_of("s"), true) != ETCH_OK, ETCH_ERR_NOT_FOUND,
                    "missing weight_ih, weight_hh, bias_ih and 1 more; unexpected none");
        etch_module_free(m);
    }
}

/* ---- what does not fit ---- */

/* The load fails, and no tensor of m has changed, though those before the bad one would fit. */
static void untouched(etch_module *m, const char *path, bool strict, etch_status status,
                      const char *words) {
    etch_module *before = must(etch_module_copy(m));
    etch_load_report r = {.nmissing = 9};
    FAILED_WITH(etch_module_load(m, path, strict) != ETCH_OK, status, words);
    FAILED_WITH(etch_module_load_report(m, path, strict, &r) != ETCH_OK, status, words);
    assert_int_equal(r.nmissing + r.nunexpected, 0);
    same_tensors(m, before);
    etch_module_free(before);
}

TEST(sizes_and_dtypes_that_differ) {
    ETCH_SCOPE {
        etch_module *m = toy();
        etch_named_tensor two[] = {{"0.weight", must(etch_ones(ETCH_F32, ETCH_SHAPE(10, 10)))},
                                   {"0.bias", must(etch_ones(ETCH_F32, ETCH_SHAPE(9)))}};
        for (int strict = 0; strict < 2; strict++) {
            assert_int_equal(etch_safetensors_save(path_of("s"), two, 2, NULL, 0), ETCH_OK);
            untouched(m, path_of("s"), strict, ETCH_ERR_SHAPE,
                      "expected '0.bias' of sizes [10], got [9]");
        }
        two[1].tensor = must(etch_ones(ETCH_F32, ETCH_SHAPE(1, 10)));
        assert_int_equal(etch_safetensors_save(path_of("s"), two, 2, NULL, 0), ETCH_OK);
        untouched(m, path_of("s"), true, ETCH_ERR_SHAPE, "got [1, 10]");
        two[1].tensor = must(etch_ones(ETCH_BF16, ETCH_SHAPE(10)));
        assert_int_equal(etch_safetensors_save(path_of("s"), two, 2, NULL, 0), ETCH_OK);
        untouched(m, path_of("s"), true, ETCH_ERR_DTYPE, "expected '0.bias' of f32, got bf16");
        etch_module_free(m);
    }
}

TEST(damaged_files_change_nothing) {
    ETCH_SCOPE {
        etch_module *m = toy(), *source = toy();
        assert_int_equal(etch_module_save(source, path_of("s")), ETCH_OK);
        size_t n;
        char *bytes = read_bytes(path_of("s"), &n);
        for (size_t k = 0; k < n; k += 11) {
            write_bytes(path_of("cut"), bytes, k);
            untouched(m, path_of("cut"), false, ETCH_ERR_FORMAT, "etch_safetensors_load");
        }
        untouched(m, path_of("none"), true, ETCH_ERR_IO, "No such file");
        free(bytes);
        FAILED_WITH(etch_module_load(NULL, "x", true) != ETCH_OK, ETCH_ERR_NULL,
                    "etch_module_load");
        FAILED_WITH(etch_module_save(NULL, "x") != ETCH_OK, ETCH_ERR_NULL, "etch_module_save");
        FAILED_WITH(etch_module_save(m, path_of("no/x")) != ETCH_OK, ETCH_ERR_IO, "");
        etch_module_free(m);
        etch_module_free(source);
    }
}

/* A bool buffer whose last byte is no bool is found after the weights were read. */
TEST(bad_elements_change_nothing) {
    ETCH_SCOPE {
        etch_module *m = toy();
        assert_int_equal(
            etch_module_add_buffer(m, "mask", must(etch_ones(ETCH_BOOL, ETCH_SHAPE(3)))), ETCH_OK);
        assert_int_equal(etch_module_save(m, path_of("s")), ETCH_OK);
        FILE *f = must(fopen(path_of("s"), "r+b"));
        fseek(f, -1, SEEK_END);
        fputc(7, f);
        fclose(f);
        ETCH_NO_GRAD { must(etch_zero_(etch_module_parameter(m, "0.weight"))); }
        untouched(m, path_of("s"), true, ETCH_ERR_FORMAT, "neither 0 nor 1");
        etch_module_free(m);
    }
}

/* ---- tied tensors ---- */

/* Two linear layers of one weight. */
static etch_module *tied(void) {
    etch_module *layers[2] = {etch_nn_linear(3, 3, ETCH_F32), etch_nn_linear(3, 3, ETCH_F32)};
    etch_module *m = must(etch_nn_sequential(layers, 2));
    assert_int_equal(etch_module_set_tensor(m, "1.weight", etch_module_parameter(m, "0.weight")),
                     ETCH_OK);
    return m;
}

TEST(tied_tensors_are_there_once) {
    ETCH_SCOPE {
        etch_module *m = tied(), *other = tied();
        assert_int_equal(etch_module_save(m, path_of("s")), ETCH_OK);
        etch_safetensors *f = must(etch_safetensors_load(path_of("s")));
        assert_int_equal(etch_safetensors_count(f), 3);
        assert_int_equal(etch_safetensors_find(f, "1.weight"), -1);
        etch_safetensors_free(f);
        assert_int_equal(etch_module_load(other, path_of("s"), true), ETCH_OK);
        same_tensors(m, other);
        etch_module *made = must(etch_module_from_file(path_of("s")));
        same_tensors(m, made);
        assert_ptr_equal(etch_module_parameter(made, "0.weight"),
                         etch_module_parameter(made, "1.weight"));
        etch_module_free(m);
        etch_module_free(other);
        etch_module_free(made);
    }
}

TEST(tied_tensors_by_any_name) {
    ETCH_SCOPE {
        etch_module *m = tied();
        etch_tensor *w = must(etch_full(ETCH_F32, ETCH_SHAPE(3, 3), 5.0));
        etch_tensor *b = must(etch_zeros(ETCH_F32, ETCH_SHAPE(3)));
        etch_named_tensor all[] = {{"1.weight", w}, {"0.bias", b}, {"1.bias", b}, {"0.weight", w}};
        assert_int_equal(etch_safetensors_save(path_of("s"), all, 3, NULL, 0), ETCH_OK);
        assert_int_equal(etch_module_load(m, path_of("s"), true), ETCH_OK);
        assert_true(etch_bitwise_equal(etch_module_parameter(m, "0.weight"), w));
        assert_int_equal(etch_safetensors_save(path_of("s"), all, 4, NULL, 0), ETCH_OK);
        assert_int_equal(etch_module_load(m, path_of("s"), true), ETCH_OK);
        all[3].tensor = must(etch_neg(w));
        assert_int_equal(etch_safetensors_save(path_of("s"), all, 4, NULL, 0), ETCH_OK);
        untouched(m, path_of("s"), true, ETCH_ERR_FORMAT,
                  "'0.weight' and '1.weight' are one tensor");
        etch_module_free(m);
    }
}

/* ---- whole modules ---- */

/* As many rows as there are ready-made types. */
static etch_module *ready(int i) {
    switch (i) {
    case 0: return etch_nn_linear_with(4, 3, ETCH_F64, false);
    case 1:
        return etch_nn_conv2d(4, 6, ETCH_SHAPE(3, 2), ETCH_F32, .stride = {2, 1},
                              .padding = {1, -1}, .dilation = {1, 2}, .groups = 2);
    case 2:
        return etch_nn_conv1d(4, 6, 3, ETCH_F32, .stride = {2}, .padding = {1}, .no_bias = true);
    case 3:
        return etch_nn_max_pool2d(ETCH_SHAPE(3, 2), .stride = {1, 2}, .padding = {1},
                                  .dilation = {1, 2}, .ceil_mode = true);
    case 4:
        return etch_nn_avg_pool2d(ETCH_SHAPE(2, 2), .padding = {1, -1}, .exclude_padding = true);
    case 5: return etch_nn_layer_norm(ETCH_SHAPE(6, 8), ETCH_F32, .eps = 1e-3, .no_bias = true);
    case 6: return etch_nn_rms_norm(ETCH_SHAPE(8), ETCH_F32);
    case 7: return etch_nn_batch_norm1d(4, ETCH_F32, .momentum = -1);
    case 8: return etch_nn_batch_norm2d(4, ETCH_F32, .no_affine = true);
    case 9: return etch_nn_group_norm(2, 4, ETCH_F32, .eps = 0.1);
    case 10: return etch_nn_dropout(0.375);
    case 11: return etch_nn_flatten(1, 2);
    case 12: return etch_nn_embedding(9, 3, ETCH_BF16);
    case 13: return etch_nn_gelu(true);
    case 14: return etch_nn_gelu(false);
    case 15: return etch_nn_silu();
    case 16: return etch_nn_tanh();
    case 17: return etch_nn_sigmoid();
    case 18: return etch_nn_multihead_attention(8, 2, ETCH_F32, .causal = true, .dropout = 0.5);
    case 19: return etch_nn_lstm_cell(8, 3, ETCH_F32);
    case 20: return etch_nn_gru_cell(8, 3, ETCH_F32);
    case 21: return toy();
    default: return NULL;
    }
}

static etch_tensor *input_of(int i) {
    etch_manual_seed(8);
    etch_tensor *x = must(etch_randn(ETCH_F32, ETCH_SHAPE(2, 4, 6, 8)));
    if (i == 0) return must(etch_randn(ETCH_F64, ETCH_SHAPE(2, 4)));
    if (i == 2 || i == 7 || i == 18) x = must(etch_select(x, 2, 0)); /* [2, 4, 8] */
    if (i == 12) return must(etch_arange(ETCH_I64, 0, 9, 1));
    if (i == 19 || i == 20) return must(etch_select(must(etch_select(x, 2, 0)), 1, 0));
    return i == 21 ? same_input() : x;
}

TEST(every_ready_made_type) {
    etch_module *m;
    for (int i = 0; (m = ready(i)); i++)
        ETCH_SCOPE {
            etch_tensor *x = input_of(i), *want, *have;
            must(etch_module_call(m, x)); /* so that statistics are not new */
            if (i % 3 == 0) assert_int_equal(etch_module_train(m, false), ETCH_OK);
            assert_int_equal(etch_module_save(m, path_of("m")), ETCH_OK);
            etch_module *made = must(etch_module_from_file(path_of("m")));
            assert_string_equal(etch_module_type(made), etch_module_type(m));
            assert_string_equal(etch_module_config(made), etch_module_config(m));
            assert_int_equal(etch_module_is_training(made), i % 3 != 0);
            same_tensors(m, made);
            etch_manual_seed(1);
            want = must(etch_module_call(m, x));
            etch_manual_seed(1);
            have = must(etch_module_call(made, x));
            assert_true(etch_bitwise_equal(want, have));
            same_tensors(m, made);
            etch_module_free(m);
            etch_module_free(made);
        }
}

/* With what was added to the modules and set in them: names in the file are those of the tree. */
TEST(a_tree_of_many_things) {
    ETCH_SCOPE {
        etch_module *inner[2] = {etch_nn_multihead_attention(4, 2, ETCH_F32), etch_nn_relu()};
        etch_module *outer[2] = {etch_nn_sequential(inner, 2), tied()};
        etch_module *m = must(etch_nn_sequential(outer, 2));
        etch_tensor *t = must(etch_arange(ETCH_I32, 0, 5, 1));
        assert_int_equal(etch_module_add_buffer(m, "steps", t), ETCH_OK);
        assert_int_equal(
            etch_module_add_parameter(outer[0], "extra", etch_module_parameter(m, "1.0.weight")),
            ETCH_OK);
        assert_int_equal(etch_module_requires_grad_(inner[0], false), ETCH_OK);
        assert_int_equal(etch_module_train(outer[1], false), ETCH_OK);
        assert_int_equal(etch_module_save(m, path_of("m")), ETCH_OK);
        etch_module *made = must(etch_module_from_file(path_of("m")));
        same_tensors(m, made);
        assert_true(etch_bitwise_equal(etch_module_buffer(made, "steps"), t));
        assert_ptr_equal(etch_module_parameter(made, "0.extra"),
                         etch_module_parameter(made, "1.1.weight"));
        for (int i = 0; i < etch_module_parameter_count(m); i++) {
            assert_string_equal(etch_module_parameter_name(m, i),
                                etch_module_parameter_name(made, i));
            assert_int_equal(etch_requires_grad(etch_module_parameter_at(m, i)),
                             etch_requires_grad(etch_module_parameter_at(made, i)));
        }
        assert_false(etch_requires_grad(etch_module_parameter(made, "0.0.out_proj.weight")));
        assert_true(etch_module_is_training(made));
        assert_false(etch_module_is_training(etch_module_find(made, "1.1")));
        etch_module_free(m);
        etch_module_free(made);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

/* ---- types of the user ---- */

/* y = x scale; the config is the number of times it is applied. */
static etch_tensor *scale_forward(etch_module *m, etch_tensor *x) {
    for (int n = atoi(etch_module_config(m)); x && n > 0; n--)
        x = etch_mul(x, etch_module_parameter(m, "scale"));
    return x;
}

static etch_module *make_scale(const char *config) {
    etch_module *m = must(etch_module_new("Scale", scale_forward));
    ETCH_SCOPE {
        etch_tensor *one = must(etch_ones(ETCH_F32, ETCH_SHAPE()));
        assert_int_equal(etch_module_add_parameter(m, "scale", one), ETCH_OK);
    }
    assert_int_equal(etch_module_set_config(m, config), ETCH_OK);
    return m;
}

static etch_module *make_nothing(const char *config) {
    (void)config;
    return etch_set_error(ETCH_ERR_USER, "no such module"), NULL;
}
static etch_module *make_another(const char *config) {
    (void)config;
    return etch_nn_relu();
}

TEST(types_of_the_user) {
    ETCH_SCOPE {
        etch_module *layers[2] = {make_scale("3"), etch_nn_relu()};
        etch_module *m = must(etch_nn_sequential(layers, 2));
        etch_tensor *x = same_input();
        ETCH_NO_GRAD { must(etch_fill_(etch_module_parameter(m, "0.scale"), -0.5)); }
        assert_int_equal(etch_module_save(m, path_of("m")), ETCH_OK);
        FAILED_WITH(!etch_module_from_file(path_of("m")), ETCH_ERR_NOT_FOUND,
                    "the type 'Scale' is not registered");
        assert_int_equal(etch_module_register_type("Scale", make_scale), ETCH_OK);
        assert_int_equal(etch_module_register_type("Scale", make_scale), ETCH_OK);
        FAILED_WITH(etch_module_register_type("Scale", make_nothing) != ETCH_OK,
                    ETCH_ERR_INVALID_ARGUMENT, "'Scale' has another maker");
        FAILED_WITH(etch_module_register_type("ReLU", make_scale) != ETCH_OK,
                    ETCH_ERR_INVALID_ARGUMENT, "'ReLU' has another maker");
        FAILED_WITH(etch_module_register_type(NULL, make_scale) != ETCH_OK, ETCH_ERR_NULL,
                    "etch_module_register_type");
        etch_module *made = must(etch_module_from_file(path_of("m")));
        assert_true(etch_bitwise_equal(etch_module_call(made, x), etch_module_call(m, x)));
        etch_module_free(m);
        etch_module_free(made);
    }
}

/* ---- descriptions that lie ---- */

/* From a file with a tensor "w" f32 [2, 2], "b" f32 [2] and this description. */
static etch_module *described(const char *text) {
    etch_module *m = NULL;
    ETCH_SCOPE {
        const etch_named_tensor all[] = {{"w", must(etch_ones(ETCH_F32, ETCH_SHAPE(2, 2)))},
                                         {"b", must(etch_ones(ETCH_F32, ETCH_SHAPE(2)))}};
        const etch_named_text texts[] = {{"etch_module", text}};
        assert_int_equal(etch_safetensors_save(path_of("d"), all, 2, texts, 1), ETCH_OK);
        m = etch_module_from_file(path_of("d"));
    }
    return m;
}

#define LINEAR(in, out)                                                                            \
    "\"type\":\"Linear\",\"config\":\"{\\\"in\\\":" in ",\\\"out\\\":" out                         \
    ",\\\"dtype\\\":\\\"f32\\\",\\\"bias\\\":true}\""
#define TENSORS ",\"parameters\":{\"weight\":{\"tensor\":\"w\"},\"bias\":{\"tensor\":\"b\"}}"

static const struct lie {
    const char *text;
    etch_status status;
    const char *words;
} lies[] = {
    {"", ETCH_ERR_FORMAT, "expected '{'"},
    {"{}", ETCH_ERR_FORMAT, "expected a type first"},
    {"{\"config\":\"\"}", ETCH_ERR_FORMAT, "expected a type first"},
    {"{\"parameters\":{},\"type\":\"ReLU\"}", ETCH_ERR_FORMAT, "expected a type first"},
    {"{\"type\":\"Who\"}", ETCH_ERR_NOT_FOUND, "'Who' is not registered"},
    {"{\"type\":\"ReLU\"}", ETCH_ERR_FORMAT, "a config of ReLU does not fit: 'none'"},
    {"{\"type\":\"ReLU\",\"config\":\"[]\"}", ETCH_ERR_FORMAT, "a config of ReLU"},
    {"{\"type\":\"ReLU\",\"config\":\"{}\",\"more\":1}", ETCH_ERR_FORMAT,
     "a field that there is not"},
    {"{\"type\":\"ReLU\",\"config\":\"{}\",\"training\":1}", ETCH_ERR_FORMAT, "true or false"},
    {"{\"type\":\"ReLU\",\"config\":\"{}\"} x", ETCH_ERR_FORMAT, "something behind the module"},
    {"{\"type\":\"Linear\",\"config\":\"{}\"}", ETCH_ERR_FORMAT, "a config of Linear"},
    {"{" LINEAR("2.5", "2") TENSORS "}", ETCH_ERR_FORMAT, "a config of Linear"},
    {"{" LINEAR("-2", "2") TENSORS "}", ETCH_ERR_SHAPE, "etch_nn_linear"},
    {"{" LINEAR("1e300", "2") TENSORS "}", ETCH_ERR_FORMAT, "a config of Linear"},
    {"{" LINEAR("4000000000", "4000000000") TENSORS "}", ETCH_ERR_FORMAT, "larger than the file"},
    {"{" LINEAR("100000", "100000") TENSORS "}", ETCH_ERR_FORMAT, "larger than the file"},
    {"{" LINEAR("2", "1") TENSORS "}", ETCH_ERR_SHAPE, "expected 'w' of sizes [1, 2]"},
    {"{" LINEAR("2", "2") "}", ETCH_ERR_FORMAT, "lacks"},
    {"{" LINEAR("2", "2") ",\"parameters\":{}}", ETCH_ERR_FORMAT, "lacks tensors of 'Linear'"},
    {"{" LINEAR("2", "2") ",\"parameters\":{\"weight\":{\"tensor\":\"w\"}}}", ETCH_ERR_FORMAT,
     "lacks tensors of 'Linear'"},
    {"{" LINEAR("2", "2") ",\"parameters\":{\"weight\":{\"tensor\":\"w\"},\"weight\":{\"tensor\":"
                          "\"w\"}}}",
     ETCH_ERR_FORMAT, "another order"},
    {"{" LINEAR("2", "2") ",\"parameters\":{\"weight\":{\"tensor\":\"x\"}}}", ETCH_ERR_FORMAT,
     "there is no tensor 'x'"},
    {"{" LINEAR("2", "2") ",\"parameters\":{\"weight\":{}}}", ETCH_ERR_FORMAT, "name of a tensor"},
    {"{" LINEAR("2", "2") ",\"parameters\":{\"weight\":{\"tensor\":\"w\",\"x\":1}}}",
     ETCH_ERR_FORMAT, "expected tensor or frozen"},
    {"{" LINEAR("2", "2") TENSORS ",\"children\":{\"a.b\":{\"type\":\"ReLU\",\"config\":\"{}\"}}}",
     ETCH_ERR_INVALID_ARGUMENT, "'a.b'"},
    {"{" LINEAR("2", "2") TENSORS ",\"buffers\":{\"weight\":{\"tensor\":\"w\"}}}",
     ETCH_ERR_INVALID_ARGUMENT, "'weight'"},
    {"{\"type\":\"Nothing\"}", ETCH_ERR_USER, "no such module"},
    {"{\"type\":\"Another\"}", ETCH_ERR_FORMAT, "a module of another type was made for 'Another'"},
};

TEST(descriptions_that_lie) {
    assert_int_equal(etch_module_register_type("Nothing", make_nothing), ETCH_OK);
    assert_int_equal(etch_module_register_type("Another", make_another), ETCH_OK);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        etch_clear_error();
        etch_module *m = described(lies[i].text);
        if (m || etch_last_status() != lies[i].status || !strstr(etch_last_error(), lies[i].words))
            fail_msg("%s: %s: %s", lies[i].text, m ? "made" : "refused", etch_last_error());
    }
    etch_clear_error();
    assert_int_equal(etch_memory().tensors, 0);
    etch_module *m = must(described("{" LINEAR("2", "2") TENSORS "}"));
    near_values(etch_module_parameter(m, "weight"), (double[]){1, 1, 1, 1}, 0);
    etch_module_free(m);
}

/* A child that the maker makes itself is another one in the file. */
TEST(children_that_differ) {
    ETCH_SCOPE {
        etch_module *m = must(etch_nn_multihead_attention(2, 1, ETCH_F32));
        assert_int_equal(etch_module_set_config(etch_module_find(m, "out_proj"), "{\"in\":3}"),
                         ETCH_OK);
        assert_int_equal(etch_module_save(m, path_of("m")), ETCH_OK);
        FAILED_WITH(!etch_module_from_file(path_of("m")), ETCH_ERR_FORMAT,
                    "makes another module than 'Linear'");
        etch_module_free(m);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

TEST(nesting_has_a_limit) {
    char text[8192] = "";
    for (int i = 0; i < 60; i++)
        strcat(text, "{\"type\":\"Sequential\",\"config\":\"{}\",\"children\":{\"0\":");
    strcat(text, "{}");
    for (int i = 0; i < 60; i++) strcat(text, "}}");
    FAILED_WITH(!described(text), ETCH_ERR_FORMAT, "nested too deep");
}

TEST(files_without_a_description) {
    ETCH_SCOPE {
        assert_int_equal(etch_safetensors_save(path_of("s"), NULL, 0, NULL, 0), ETCH_OK);
        FAILED_WITH(!etch_module_from_file(path_of("s")), ETCH_ERR_NOT_FOUND, "no description");
        FAILED_WITH(!etch_module_from_file(path_of("none")), ETCH_ERR_IO, "No such file");
        FAILED_WITH(!etch_module_from_file(NULL), ETCH_ERR_NULL, "etch_module_from_file");
    }
}

TEST(the_folder_goes, .last = true) { remove_folder(); }
