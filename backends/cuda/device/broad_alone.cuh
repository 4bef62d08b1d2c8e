/* What follows a broad product that is alone: its elements are stored, eight at a time or one. */
template <class T, int N> struct vec {
    T e[N];
};
struct etch_args {
    unsigned short *c;
};
template <class T>
__device__ __forceinline__ void after(const etch_args &a, int row, int column, int columns,
                                      const T &x, int j, int n) {
    unsigned short *const to = a.c + (long long)row * columns + column;
    if (n == 8) *(uint4 *)to = make_uint4(x.word[0], x.word[1], x.word[2], x.word[3]);
    else *to = (unsigned short)(x.word[j / 2] >> j % 2 * 16);
}
