// The activation of an MLP, with or without what it gates.
// levels: scalar avx2 avx512 neon
#include "vector.h"

OCTAVO_BEGIN

struct ActivationArgs {
    const void* gate;
    // Null: nothing is multiplied.
    const void* up;
    void* out;
    int64_t dtype, activation, num_tokens, size, gate_token, up_token;
};

// As octavo/ops/gated_activation/cpu.py numbers them.
enum Activation : int64_t { SILU = 0, GELU = 1, GELU_TANH = 2, RELU = 3 };

inline Floats activate(Floats x, int64_t activation) {
    Floats one = broadcast(1.0f);
    switch (activation) {
        case SILU: return x / (one + exponential(broadcast(0.0f) - x));
        case GELU_TANH: {
            // x * sigmoid(2y) is x / 2 * (1 + tanh(y)).
            Floats inner = x * fused(x * x, broadcast(0.044715f * 1.5957691216f), broadcast(1.5957691216f));
            return x / (one + exponential(broadcast(0.0f) - inner));
        }
        case GELU: {
            float lanes[Floats::WIDTH];
            store(lanes, x);
            for (float& lane : lanes) lane = 0.5f * lane * (1.0f + erff(lane * 0.70710678f));
            return load(lanes);
        }
        // Zero first, so that NaN stays.
        default: return larger(broadcast(0.0f), x);
    }
}

OCTAVO_END

OP(activation) {
    OCTAVO_USE;
    const auto& a = args<ActivationArgs>(raw);
    with_dtype(a.dtype, [&](auto kind) {
        using T = decltype(kind);
        parallel_for(a.num_tokens, max64(1, 8192 / a.size), [&](int64_t begin, int64_t end) {
            for (int64_t token = begin; token < end; token++) {
                const T* gate = static_cast<const T*>(a.gate) + token * a.gate_token;
                const T* up = a.up == nullptr ? nullptr : static_cast<const T*>(a.up) + token * a.up_token;
                T* out = static_cast<T*>(a.out) + token * a.size;
                each_vector(a.size, [&](int64_t i, int64_t n) {
                    Floats x = activate(load_part(gate + i, n), a.activation);
                    store_part(out + i, up == nullptr ? x : x * load_part(up + i, n), n);
                });
            }
        });
    });
}
