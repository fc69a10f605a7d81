// The activations of MLPs, a vector at a time.
#pragma once

#include "simd_math.h"

namespace stentor {

struct Silu {
    static vf apply(vf x) { return x / (set1(1.0f) + exp(-x)); }
};
// For what is rounded to eight bits or to bfloat16.
struct RoughSilu {
    static vf apply(vf x) { return x / (set1(1.0f) + exp2_roughly(x * set1(-1.44269504088896341f))); }
};
struct GeluTanh {
    static vf apply(vf x) {
        // (1 + tanh(u)) / 2 is 1 / (1 + e^-2u): no cancellation where x is negative.
        const vf twice = set1(1.5957691216057308f) * fma(set1(0.044715f) * x * x, x, x);
        return x / (set1(1.0f) + exp(-twice));
    }
};
struct Gelu {
    static vf apply(vf x) {
        const vf half = set1(0.5f) * x;
        return fma(half, erf(x * set1(0.7071067811865476f)), half);
    }
};
struct Relu {
    static vf apply(vf x) { return select(x < set1(0.0f), set1(0.0f), x); }  // keeps what is no number
};
struct Relu2 {
    static vf apply(vf x) {
        const vf positive = Relu::apply(x);
        return positive * positive;
    }
};
struct QuickGelu {
    static vf apply(vf x) { return x / (set1(1.0f) + exp(x * set1(-1.702f))); }
};
// gpt-oss: of a gate and what it gates. A comparison with what is no number keeps it.
struct SwigluOai {
    static vf apply(vf gate, vf up) {
        const vf limit = set1(7.0f);
        gate = select(gate > limit, limit, gate);
        up = select(up > limit, limit, select(up < -limit, -limit, up));
        return gate / (set1(1.0f) + exp(gate * set1(-1.702f))) * (up + set1(1.0f));
    }
};
// DeepSeek-V4, likewise.
struct Swiglu10 {
    static vf apply(vf gate, vf up) {
        const vf limit = set1(10.0f);
        gate = select(gate > limit, limit, gate);
        up = select(up > limit, limit, select(up < -limit, -limit, up));
        return Silu::apply(gate) * up;
    }
};
// Step 3.5: the activated gate is clamped.
struct Silu7 {
    static vf apply(vf gate, vf up) {
        const vf limit = set1(7.0f), active = Silu::apply(gate);
        up = select(up > limit, limit, select(up < -limit, -limit, up));
        return select(active > limit, limit, active) * up;
    }
};
// Kimi K3: gate and up are bounded smoothly, by 4 and 25.
struct Situ {
    static vf apply(vf gate, vf up) {
        const vf bounded = set1(4.0f) * tanh(gate * set1(0.25f));
        return bounded / (set1(1.0f) + exp(-gate)) * (set1(25.0f) * tanh(up * set1(0.04f)));
    }
};

}  // namespace stentor
