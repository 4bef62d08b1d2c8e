"""An exported function called from Python, by ctypes alone.

    export.py LIBETCH FILE SIZE...        one argument of f32 with these sizes, one result
"""
import ctypes
import sys

F32, MAX_DIMS, HANDLE = 0, 8, ctypes.c_void_p


class Shape(ctypes.Structure):
    _fields_ = [("n", ctypes.c_int32), ("v", ctypes.c_int64 * MAX_DIMS)]


etch = ctypes.CDLL(sys.argv[1])
for name, result, arguments in [
    ("etch_last_error", ctypes.c_char_p, []),
    ("etch_scope_begin", ctypes.c_int64, []),
    ("etch_scope_end", None, [ctypes.c_int64]),
    ("etch_from_host", HANDLE, [ctypes.c_void_p, ctypes.c_int, Shape]),
    ("etch_format", ctypes.c_int64, [HANDLE, ctypes.c_char_p, ctypes.c_size_t]),
    ("etch_import_with", HANDLE, [ctypes.c_char_p, ctypes.c_void_p]),
    ("etch_imported_call_one", HANDLE, [HANDLE, ctypes.POINTER(HANDLE), ctypes.c_int]),
    ("etch_imported_free", None, [HANDLE]),
]:
    getattr(etch, name).restype, getattr(etch, name).argtypes = result, arguments

sizes = [int(size) for size in sys.argv[3:]]
count = 1
for size in sizes:
    count *= size
f = etch.etch_import_with(sys.argv[2].encode(), None) or sys.exit(etch.etch_last_error())
scope = etch.etch_scope_begin()
data = (ctypes.c_float * count)(*[i % 7 / 7 for i in range(count)])
shape = Shape(len(sizes), (ctypes.c_int64 * MAX_DIMS)(*sizes))
x = etch.etch_from_host(data, F32, shape)
y = etch.etch_imported_call_one(f, (HANDLE * 1)(x), 1) or sys.exit(etch.etch_last_error())
text = ctypes.create_string_buffer(4096)
etch.etch_format(y, text, len(text))
print(text.value.decode())
etch.etch_scope_end(scope)
etch.etch_imported_free(f)
