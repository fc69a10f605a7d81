"""The noise of a draw: a counter-based hash of (seed, output index, token id), turned into Gumbel noise.

Per row, a 64-bit key (splitmix64's finaliser, twice, so that the key is well mixed in both parts)::

    mix64(x): x ^= x >> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >> 27; x *= 0x94D049BB133111EB; x ^= x >> 31
    key  = mix64(mix64(seed + GOLDEN) + index * GOLDEN)           GOLDEN = 0x9E3779B97F4A7C15, modulo 2**64

Per token, 32 bits (Wellons' ``lowbias32`` twice, one half of the key before each)::

    mix32(x): x ^= x >> 16; x *= 0x7FEB352D; x ^= x >> 15; x *= 0x846CA68B; x ^= x >> 16
    word = mix32(mix32(token ^ (key >> 32)) + (key & 0xFFFFFFFF))                        modulo 2**32

The uniform number is ``u = 1 - (word + 0.5) / 2**32``, exact in float64 and inside (0, 1), and the noise ``g =
-ln(-ln(u))`` lies in [-3.14, 22.88]. Its resolution is finest in the upper tail, where it matters: a token of
probability 2**-32 can still win.

``ln`` below consists of float64 additions, multiplications and divisions, each rounded once. Another implementation
that keeps their order gets the same bits; a library's logarithm would differ in the last one.
"""

import torch

GOLDEN = 0x9E3779B97F4A7C15
NOISE_MIN = -3.14
NOISE_MAX = 22.88

_LN2 = 0.6931471805599453
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
_MASK32 = 0xFFFFFFFF


def signed(value: int) -> int:
    """Returns the int64 with the bits of an unsigned 64-bit number."""
    return value - (1 << 64) if value >> 63 else value


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shifts int64 bit patterns logically."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix64(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shift_right(x, 30)) * signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * signed(0x94D049BB133111EB)
    return x ^ _shift_right(x, 31)


def _mix32(x: torch.Tensor) -> torch.Tensor:
    """Takes int64 tensors that hold 32-bit numbers."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK32
    return x ^ (x >> 16)


def row_keys(seeds: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Returns keys [R] int64 (bit patterns of 64 bits) from seeds [R] int64 (bit patterns) and output indices [R]
    int64."""
    return _mix64(_mix64(seeds + signed(GOLDEN)) + indices * signed(GOLDEN))


def noise_words(keys: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Returns 32 random bits, int64, for keys and token ids (int64) that broadcast against each other."""
    return _mix32((_mix32(tokens ^ _shift_right(keys, 32)) + (keys & _MASK32)) & _MASK32)


def ln(x: torch.Tensor) -> torch.Tensor:
    """Returns the natural logarithm of positive normal float64 numbers, within about 1e-15, with the same bits
    everywhere.

    x = 2**e * m with m in [sqrt(1/2), sqrt(2)); ln m = 2 artanh(s), s = (m - 1) / (m + 1), |s| < 0.172.
    """
    bits = x.view(torch.int64)
    exponent = (bits - _SQRT_HALF_BITS) >> 52
    m = (bits - (exponent << 52)).view(torch.float64)
    s = (m - 1.0) / (m + 1.0)
    s2 = s * s
    series = torch.full_like(s, 1.0 / 17.0)
    for n in (15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0):
        series = series * s2 + 1.0 / n
    return exponent.to(torch.float64) * _LN2 + (s + s) * (series * s2 + 1.0)


def gumbel(words: torch.Tensor) -> torch.Tensor:
    """Returns standard Gumbel noise, float64, from 32-bit words (int64)."""
    u = 1.0 - (words.to(torch.float64) + 0.5) * 2.0**-32
    return -ln(-ln(u))
