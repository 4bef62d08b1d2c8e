/* Exported functions on a GPU: the file has the code that its calls need, so that a fresh process
 * compiles nothing. On the fakes, or with ETCH_TEST_REAL_GPU=1 on a real GPU.
 * Labels: driver. */
#include "cuda_child.h"

#include <etch/debug.h>
#include <etch/export.h>
#include <sys/stat.h>

static char folder[] = "/tmp/etch-cuda-export-XXXXXX";

static const char *path_of(const char *name) {
    static char path[2][128];
    static int next;
    char *p = path[next++ % 2];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

/* ---- a function with kernels of its own, products, and operators that are calls ---- */

static etch_tensor *weights, *count;

static etch_tensor *body(etch_tensor *x) {
    etch_tensor *n = etch_add_scalar_(count, 1);
    etch_tensor *h = etch_relu(etch_mm(x, weights));
    etch_tensor *p = etch_softmax(h, 1);
    etch_tensor *s = etch_cumsum(p, 0);
    return n ? etch_add(etch_sin(s), n) : NULL;
}

static etch_tensor *ramp(int64_t rows, int64_t columns) {
    etch_tensor *all = etch_arange(ETCH_F32, 0, (double)(rows * columns), 1);
    return etch_mul_scalar(etch_view(all, ETCH_SHAPE(rows, columns)), 0.01);
}

static void make_captured(void) {
    weights = on_gpu(ramp(6, 5));
    count = on_gpu(etch_zeros(ETCH_F32, ETCH_SHAPE(1)));
}

/* The first of the two processes: the file, and what three calls give. */
TEST(exported, .first = true) {
    make_captured();
    etch_tensor *x = on_gpu(ramp(9, 6));
    etch_named_tensor want[3];
    static const char *const names[] = {"0", "1", "2"};
    etch_function *f = etch_compile(body);
    CHECK(etch_export(f, &x, 1, path_of("f.etch")) == ETCH_OK);
    CHECK(etch_item(etch_to_device(count, ETCH_CPU)) == 0);
    for (int i = 0; i < 3; i++)
        want[i] = (etch_named_tensor){names[i], etch_to_device(etch_call(f, x), ETCH_CPU)};
    CHECK(etch_safetensors_save(path_of("want"), want, 3, NULL, 0) == ETCH_OK);
    static char text[1 << 16];
    CHECK(etch_export_describe(path_of("f.etch"), text, sizeof text) > 0);
    const char *code = strstr(text, "kernels of the CPU");
    CHECK(code && strstr(text, "argument 0: f32[9, 6] on cuda:0"));
    CHECK(!strstr(text, "; 0 of a device"));
    etch_function_free(f);
}

static void calls_are_the_same(etch_imported *f) {
    etch_tensor *x = on_gpu(ramp(9, 6));
    etch_safetensors *want = etch_safetensors_load(path_of("want"));
    CHECK(f && want);
    for (int i = 0; i < 3; i++) {
        char name[8];
        snprintf(name, sizeof name, "%d", i);
        etch_tensor *y = etch_imported_call_one(f, &x, 1);
        CHECK(y && etch_device_of(y) == gpu);
        etch_tensor *here = etch_to_device(y, ETCH_CPU);
        int k = etch_safetensors_find(want, name);
        CHECK(etch_bitwise_equal(here, etch_safetensors_tensor(want, k)));
    }
    etch_safetensors_free(want);
}

/* The second: nothing is compiled, and weights lie on the GPU. */
TEST(nothing_is_compiled) {
    etch_imported *f = etch_import(path_of("f.etch"));
    CHECK(f && etch_device_of(etch_imported_weight(f, 0)) == gpu);
    calls_are_the_same(f);
    if (!on_real_gpu()) CHECK(calls_of("nvrtcCompileProgram") == 0);
    CHECK(etch_counters().kernels_compiled == 0);
    etch_imported_free(f);
}

TEST(compiled_anew, .setting = "ETCH_CACHE_SIZE=0") {
    etch_imported *f = etch_import(path_of("f.etch"), .code = ETCH_CODE_COMPILE);
    calls_are_the_same(f);
    CHECK(etch_counters().kernels_compiled > 0);
    etch_imported_free(f);
}

TEST(by_the_operators_kernels) {
    etch_imported *f = etch_import(path_of("f.etch"), .code = ETCH_CODE_EAGER);
    calls_are_the_same(f);
    etch_imported_free(f);
}

TEST(devices_that_do_not_fit) {
    etch_imported *f = etch_import(path_of("f.etch"));
    etch_tensor *x = ramp(9, 6);
    CHECK(!etch_imported_call_one(f, &x, 1) && etch_last_status() == ETCH_ERR_DEVICE);
    CHECK(says(etch_last_error(), "argument 0: expected one on cuda:0, got cpu"));
    etch_imported_free(f);
    /* A captured tensor on the CPU. */
    weights = ramp(6, 5), count = etch_zeros(ETCH_F32, ETCH_SHAPE(1));
    etch_tensor *there = on_gpu(x);
    etch_function *g = etch_compile(body);
    CHECK(etch_export(g, &there, 1, path_of("g.etch")) == ETCH_ERR_DEVICE);
    etch_function_free(g);
}

/* A machine without a GPU says so. */
TEST(without_a_device, .setting = "ETCH_CUDA=0") {
    CHECK(!etch_import(path_of("f.etch"), .code = ETCH_CODE_EAGER));
    CHECK(etch_last_status() == ETCH_ERR_DEVICE);
}

TEST(the_folder_goes, .last = true) {
    unlink(path_of("f.etch")), unlink(path_of("g.etch")), unlink(path_of("want"));
    rmdir(folder);
}

int main(int argc, char **argv) {
    if (!mkdtemp(folder)) return 1;
    return run_in_children(argc, argv);
}
