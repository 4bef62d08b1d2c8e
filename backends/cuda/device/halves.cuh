/* Numbers of 16 bits from and to f32, rounded once. */
__device__ float load_half(unsigned short h, int bf16) {
    if (bf16) return __uint_as_float((unsigned)h << 16);
    unsigned sign = (unsigned)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff;
    if (e == 0) return __uint_as_float(sign | 0x3f800000) * ((float)m * 5.9604644775390625e-8f);
    return __uint_as_float(sign | (e == 31 ? 255 : e + 112) << 23 | m << 13);
}
__device__ unsigned short store_half(float f, int bf16) {
    unsigned u = __float_as_uint(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) return bf16 ? (u >> 16 | 0x40) : (sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (bf16) return (u + 0x7fff + (u >> 16 & 1)) >> 16;
    if (a >= 0x477ff000) return sign | 0x7c00;
    if (a < 0x38800000) {
        float scaled = __uint_as_float(a) * 16777216.0f;
        return sign | (unsigned)rintf(scaled);
    }
    return sign | ((a + 0xfff + (a >> 13 & 1)) - 0x38000000) >> 13;
}
