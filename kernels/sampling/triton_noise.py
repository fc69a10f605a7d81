# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The reference's hash, Gumbel noise and integer masses on a GPU, bit for bit.

Kernels that call these are compiled without fused multiply-adds: every product and sum is rounded separately.
"""

import triton
import triton.language as tl

NO_ID = tl.constexpr(0x7FFFFFFF)
MASS_BITS = tl.constexpr(40)
LIGHTEST = tl.constexpr(-28.0)
"""Below this z a token's mass is 0, and no noise brings it past the most likely token."""
BOUND_SLACK = tl.constexpr(2e-3)
"""More than what rounding takes from a bound of z + gumbel: half in the bound of the noise, half in its sum with z."""


@triton.jit
def mix64(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def row_key(seed, index):
    """Returns uint64 keys from int64 numbers."""
    golden: tl.constexpr = 0x9E3779B97F4A7C15
    return mix64(mix64(seed.to(tl.uint64) + golden) + index.to(tl.uint64) * golden)


@triton.jit
def mix32(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def noise_word(key, tokens):
    """Returns uint32 noise for token ids int32."""
    return mix32(mix32(tokens.to(tl.uint32) ^ (key >> 32).to(tl.uint32)) + (key & 0xFFFFFFFF).to(tl.uint32))


@triton.jit
def ln(x):
    bits = x.to(tl.int64, bitcast=True)
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52
    m = (bits - (exponent << 52)).to(tl.float64, bitcast=True)
    s = (m - 1.0) / (m + 1.0)
    s2 = s * s
    series = s2 * (1.0 / 17.0) + 1.0 / 15.0
    series = series * s2 + 1.0 / 13.0
    series = series * s2 + 1.0 / 11.0
    series = series * s2 + 1.0 / 9.0
    series = series * s2 + 1.0 / 7.0
    series = series * s2 + 1.0 / 5.0
    series = series * s2 + 1.0 / 3.0
    return exponent.to(tl.float64) * 0.6931471805599453 + (s + s) * (series * s2 + 1.0)


@triton.jit
def gumbel(word):
    """Returns float64 Gumbel noise from uint32."""
    u = 1.0 - (word.to(tl.float64) + 0.5) * 2.3283064365386963e-10
    return -ln(-ln(u))


@triton.jit
def gumbel_bound(word):
    """Returns an upper bound of gumbel(word), float32, from the exponent and mantissa of the word as a float.

    With w = 1 - u: g = -ln(-ln(1 - w)) <= -ln w, and log2(2**e * (1 + f)) >= e + f.
    """
    w = (word >> 1).to(tl.int32).to(tl.float32)  # times 2**-31
    return 109.5182548 - w.to(tl.int32, bitcast=True).to(tl.float32) * 8.262958e-08


@triton.jit
def clean(x):
    """Converts to float32, with NaN as -inf."""
    x = x.to(tl.float32)
    return tl.where(x > -float("inf"), x, -float("inf"))


@triton.jit
def below(x, peak):
    """Returns x - peak; the peak itself has 0 even if it is infinite."""
    return tl.where(x == peak, 0.0, x - peak)


@triton.jit
def mass(z):
    """Returns floor(2**40 * exp(z)) for z <= 0, int64."""
    x = tl.maximum(z, -40.0)
    magic: tl.constexpr = 12582912.0  # 1.5 * 2**23: adding it rounds to an integer, half to even
    n = (x * 1.4426950408889634 + magic) - magic
    r = x - n * 0.693145751953125
    r = r - n * 1.42860682030941723e-6
    series = r * (1.0 / 720.0) + 1.0 / 120.0
    series = series * r + 1.0 / 24.0
    series = series * r + 1.0 / 6.0
    series = series * r + 0.5
    series = series * r + 1.0
    series = series * r + 1.0
    scaled = series.to(tl.int32, bitcast=True) + ((n.to(tl.int32) + MASS_BITS) << 23)
    return scaled.to(tl.float32, bitcast=True).to(tl.int64)


@triton.jit
def order_key(x):
    """Returns int32 keys in the order of float32 numbers; both zeros have the same key."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def key_value(key):
    """Returns the float32 number of an order key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
