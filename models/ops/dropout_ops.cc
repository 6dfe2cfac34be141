// What follows a product in a hidden layer, bias, ReLU and dropout, in one pass over memory, on CPUs, and the gradient of
// all of them in another.
//
// The mask is the one that models/layers.py draws with tf.random.stateless_uniform: the same bits of the same Philox
// generator (Salmon et al., 2011: 4 x 32 bits, 10 rounds), so that a run may go on with or without this file.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "machines.h"
#include "team.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace recsys_harness {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

constexpr int kLanes = 16;  // counters worked on side by side, for vector units

// Words 4 * first .. 4 * (first + kLanes) - 1 of the generator.
EVERY_MACHINE void Philox(uint64_t first, uint64_t key, uint64_t high_counter, uint32_t* words) {
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    c0[i] = static_cast<uint32_t>(first + i);
    c1[i] = static_cast<uint32_t>((first + i) >> 32);
    c2[i] = static_cast<uint32_t>(high_counter);
    c3[i] = static_cast<uint32_t>(high_counter >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kLanes; ++i) {
      const uint64_t a = uint64_t{0xD2511F53} * c0[i], b = uint64_t{0xCD9E8D57} * c2[i];
      const uint32_t n0 = static_cast<uint32_t>(b >> 32) ^ c1[i] ^ k0;
      const uint32_t n2 = static_cast<uint32_t>(a >> 32) ^ c3[i] ^ k1;
      c0[i] = n0, c1[i] = static_cast<uint32_t>(b), c2[i] = n2, c3[i] = static_cast<uint32_t>(a);
    }
    k0 += 0x9E3779B9, k1 += 0xBB67AE85;
  }
  for (int i = 0; i < kLanes; ++i) {
    words[4 * i] = c0[i], words[4 * i + 1] = c1[i], words[4 * i + 2] = c2[i], words[4 * i + 3] = c3[i];
  }
}

#if defined(__x86_64__)
// The same by hand, as compilers make no vectors of it: four counters at once, each in the low half of 64 bits, which is
// all that the multiplication reads. What is left in the high halves is never looked at.
__attribute__((target("avx2"))) void PhiloxAvx2(uint64_t first, uint64_t key, uint64_t high_counter, uint32_t* words) {
  const __m256i low_half = _mm256_set1_epi64x(0xFFFFFFFF);
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
  constexpr int kGroups = kLanes / 4;
  __m256i c0[kGroups], c1[kGroups], c2[kGroups], c3[kGroups];
  for (int g = 0; g < kGroups; ++g) {
    const uint64_t start = first + 4 * g;
    c0[g] = _mm256_set_epi64x(start + 3, start + 2, start + 1, start);
    c1[g] = _mm256_srli_epi64(c0[g], 32);
    c2[g] = _mm256_set1_epi64x(high_counter);
    c3[g] = _mm256_srli_epi64(c2[g], 32);
  }
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const __m256i left = _mm256_set1_epi64x(k0), right = _mm256_set1_epi64x(k1);
    for (int g = 0; g < kGroups; ++g) {
      const __m256i a = _mm256_mul_epu32(c0[g], m0), b = _mm256_mul_epu32(c2[g], m1);
      c0[g] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b, 32), c1[g]), left);
      c2[g] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(a, 32), c3[g]), right);
      c1[g] = b, c3[g] = a;
    }
    k0 += 0x9E3779B9, k1 += 0xBB67AE85;
  }
  for (int g = 0; g < kGroups; ++g) {
    const __m256i front = _mm256_or_si256(_mm256_and_si256(c0[g], low_half), _mm256_slli_epi64(c1[g], 32));
    const __m256i back = _mm256_or_si256(_mm256_and_si256(c2[g], low_half), _mm256_slli_epi64(c3[g], 32));
    const __m256i even = _mm256_unpacklo_epi64(front, back), odd = _mm256_unpackhi_epi64(front, back);
    __m256i* to = reinterpret_cast<__m256i*>(words + 16 * g);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
  }
}
#endif

using Generator = void (*)(uint64_t, uint64_t, uint64_t, uint32_t*);

Generator FastestGenerator() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return PhiloxAvx2;
#endif
  return Philox;
}

EVERY_MACHINE void Relu(const float* in, const float* bias, int64_t units, float* out) {
  // "Not at most 0", so that NaN goes on and is seen.
  for (int64_t i = 0; i < units; ++i) {
    const float value = in[i] + bias[i];
    out[i] = !(value <= 0.0f) ? value : 0.0f;
  }
}

EVERY_MACHINE void ReluAndDrop(const float* in, const float* bias, const uint16_t* draws, uint16_t threshold,
                               float scale, int64_t units, float* out) {
  for (int64_t i = 0; i < units; ++i) {
    const float value = in[i] + bias[i];
    out[i] = draws[i] >= threshold && !(value <= 0.0f) ? value * scale : 0.0f;
  }
}

// The gradient of a row, and its share in that of the bias.
EVERY_MACHINE void Gradient(const float* out, const float* upstream, float scale, int64_t units, float* gradient,
                            float* bias_gradient) {
  for (int64_t i = 0; i < units; ++i) {
    const float value = out[i] > 0.0f ? upstream[i] * scale : 0.0f;
    gradient[i] = value;
    bias_gradient[i] += value;
  }
}

EVERY_MACHINE void Add(const float* values, int64_t units, float* sums) {
  for (int64_t i = 0; i < units; ++i) sums[i] += values[i];
}

constexpr int64_t kBlockRows = 64;  // their shares in the gradient of the bias are added up before those of others

class BiasReluDropout : public OpKernel {
 public:
  explicit BiasReluDropout(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("threshold", &threshold_));
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& inputs = context->input(0);
    const Tensor& biases = context->input(1);
    OP_REQUIRES(context, inputs.dims() == 2 && context->input(2).NumElements() == 1 &&
                             context->input(3).NumElements() == 2,
                tensorflow::errors::InvalidArgument("inputs must be a matrix, key of one and counter of two values"));
    const int64_t units = inputs.dim_size(1), words = (units + 1) / 2;
    OP_REQUIRES(context, biases.NumElements() == units,
                tensorflow::errors::InvalidArgument("bias of ", biases.NumElements(), " values for ", units, " units"));
    const uint64_t key = context->input(2).flat<tensorflow::uint64>()(0);
    const auto counter = context->input(3).flat<tensorflow::uint64>();
    OP_REQUIRES(context, counter(0) == 0, tensorflow::errors::InvalidArgument("the counter must begin with 0"));
    const uint64_t high_counter = counter(1);
    Tensor* outputs = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, inputs.shape(), &outputs));
    const float* in = inputs.flat<float>().data();
    const float* bias = biases.flat<float>().data();
    float* out = outputs->flat<float>().data();
    if (threshold_ == 0) {
      ParallelFor(context, inputs.dim_size(0), 1, units / 8, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) Relu(in + row * units, bias, units, out + row * units);
      });
      return;
    }
    const Generator generate = FastestGenerator();
    ParallelFor(context, inputs.dim_size(0), 1, units, [&](int64_t first, int64_t last) {
      std::vector<uint32_t> drawn(words + 4 + 4 * kLanes);
      for (int64_t row = first; row < last; ++row) {
        const uint64_t start = static_cast<uint64_t>(row) * words, begin = start / 4, end = (start + words + 3) / 4;
        for (uint64_t group = begin; group < end; group += kLanes) {
          generate(group, key, high_counter, drawn.data() + 4 * (group - begin));
        }
        const uint16_t* draws = reinterpret_cast<const uint16_t*>(drawn.data() + start % 4);
        ReluAndDrop(in + row * units, bias, draws, static_cast<uint16_t>(threshold_), scale_, units,
                    out + row * units);
      }
    });
  }

 private:
  int64_t threshold_;
  float scale_;
};

class BiasReluDropoutGradient : public OpKernel {
 public:
  explicit BiasReluDropoutGradient(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& outputs = context->input(0);
    const Tensor& upstream = context->input(1);
    OP_REQUIRES(context, outputs.dims() == 2 && outputs.shape() == upstream.shape(),
                tensorflow::errors::InvalidArgument("outputs of shape ", outputs.shape().DebugString(),
                                                    " and a gradient of ", upstream.shape().DebugString()));
    const int64_t rows = outputs.dim_size(0), units = outputs.dim_size(1);
    const int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
    Tensor* gradient = nullptr;
    Tensor* bias_gradient = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({1}, 0, upstream.shape(), &gradient));
    OP_REQUIRES_OK(context, context->allocate_output(1, tensorflow::TensorShape({units}), &bias_gradient));
    const float* out = outputs.flat<float>().data();
    const float* from = upstream.flat<float>().data();
    float* to = gradient->flat<float>().data();
    // Sums of blocks of rows, then the sum of these, so that the result does not depend on the number of threads.
    std::vector<float> sums(blocks * units, 0.0f);
    ParallelFor(context, blocks, 1, kBlockRows * units / 8, [&](int64_t first, int64_t last) {
      for (int64_t row = first * kBlockRows; row < std::min(rows, last * kBlockRows); ++row) {
        Gradient(out + row * units, from + row * units, scale_, units, to + row * units,
                 sums.data() + row / kBlockRows * units);
      }
    });
    float* total = bias_gradient->flat<float>().data();
    std::fill(total, total + units, 0.0f);
    for (int64_t block = 0; block < blocks; ++block) Add(sums.data() + block * units, units, total);
  }

 private:
  float scale_;
};

absl::Status SameShape(tensorflow::shape_inference::InferenceContext* context) {
  context->set_output(0, context->input(0));
  return absl::OkStatus();
}

absl::Status GradientShapes(tensorflow::shape_inference::InferenceContext* context) {
  tensorflow::shape_inference::ShapeHandle outputs;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &outputs));
  context->set_output(0, outputs);
  context->set_output(1, context->Vector(context->Dim(outputs, 1)));
  return absl::OkStatus();
}

// relu(inputs + bias) / (1 - rate) where a draw of 16 bits is at least `threshold`, else 0. inputs (rows, units), bias
// (units,). With a threshold of 0 nothing is drawn, and the scale is not looked at.
REGISTER_OP("RecsysBiasReluDropout")
    .Input("inputs: float")
    .Input("bias: float")
    .Input("key: uint64")
    .Input("counter: uint64")
    .Output("outputs: float")
    .Attr("threshold: int")
    .Attr("scale: float")
    .SetShapeFn(SameShape);

REGISTER_OP("RecsysBiasReluDropoutGradient")
    .Input("outputs: float")
    .Input("upstream: float")
    .Output("gradient: float")
    .Output("bias_gradient: float")
    .Attr("scale: float")
    .SetShapeFn(GradientShapes);

REGISTER_KERNEL_BUILDER(Name("RecsysBiasReluDropout").Device(tensorflow::DEVICE_CPU), BiasReluDropout)
REGISTER_KERNEL_BUILDER(Name("RecsysBiasReluDropoutGradient").Device(tensorflow::DEVICE_CPU), BiasReluDropoutGradient)

}  // namespace
}  // namespace recsys_harness
