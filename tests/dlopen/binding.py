"""libetch through ctypes: data in and out, an error's text, a compiled function whose body is Python.

    binding.py LIBRARY [compiled]      compiled: etch-jit is there, so code must have run
"""
import ctypes
import sys
import threading

try:
    import numpy  # a library that brings threads and thread-locals of its own

    assert numpy.ones((64, 64)) @ numpy.ones((64, 64)) is not None
except ImportError:
    pass

F32, MAX_DIMS = 0, 8


class Shape(ctypes.Structure):
    _fields_ = [("n", ctypes.c_int32), ("v", ctypes.c_int64 * MAX_DIMS)]


etch = ctypes.CDLL(sys.argv[1])
HANDLE = ctypes.c_void_p
BODY = ctypes.CFUNCTYPE(HANDLE, HANDLE)
for name, result, arguments in [
    ("etch_version", ctypes.c_char_p, []),
    ("etch_last_error", ctypes.c_char_p, []),
    ("etch_scope_begin", ctypes.c_int64, []),
    ("etch_scope_end", None, [ctypes.c_int64]),
    ("etch_from_host", HANDLE, [ctypes.c_void_p, ctypes.c_int, Shape]),
    ("etch_mul", HANDLE, [HANDLE, HANDLE]),
    ("etch_mm", HANDLE, [HANDLE, HANDLE]),
    ("etch_sum", HANDLE, [HANDLE]),
    ("etch_item", ctypes.c_double, [HANDLE]),
    ("etch_compile_fn1", HANDLE, [BODY, ctypes.c_void_p]),
    ("etch_call_one", HANDLE, [HANDLE, ctypes.POINTER(HANDLE), ctypes.c_int]),
    ("etch_function_free", None, [HANDLE]),
]:
    function = getattr(etch, name)
    function.restype, function.argtypes = result, arguments


def body(x):
    return etch.etch_sum(etch.etch_mul(x, x))


def use():
    scope = etch.etch_scope_begin()
    data = (ctypes.c_float * 6)(1, 2, 3, 4, 5, 6)
    x = etch.etch_from_host(data, F32, Shape(2, (ctypes.c_int64 * MAX_DIMS)(2, 3)))
    assert x, etch.etch_last_error()
    assert etch.etch_mm(x, x) is None and b"mm" in etch.etch_last_error()
    callback = BODY(body)
    f = etch.etch_compile_fn1(callback, None)
    for _ in range(3):
        y = etch.etch_call_one(f, (HANDLE * 1)(x), 1)
        assert y and etch.etch_item(y) == 91, etch.etch_last_error()
    etch.etch_function_free(f)
    etch.etch_scope_end(scope)


use()
threads = [threading.Thread(target=use) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("ctypes: ok, libetch", etch.etch_version().decode())
