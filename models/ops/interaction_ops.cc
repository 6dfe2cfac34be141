// DLRM's dot interaction in float32, on CPUs: products of all pairs of a sample's vectors behind the first of them, and
// the gradient of it all.
//
// With TensorFlow's kernels the vectors are put side by side, multiplied by one another twice over, as each pair is met
// in both orders, gathered and put behind the bottom MLP's output, each in a pass over memory and some of them
// transposed; and the gradient takes the same way back. Here a sample goes through the first-level cache once.
// models/interaction.py says the same with TensorFlow's kernels, which tests hold these to; models/custom_ops.py builds
// and loads this file.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "machines.h"
#include "team.h"

namespace recsys_harness {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Compilers make no vectors of sums, whose order they may not change: these are vectors by themselves.
template <int kLanes>
struct Lanes {
  typedef float Vector __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
};
using Four = Lanes<4>::Vector;

template <int kLanes>
ALWAYS_INLINE typename Lanes<kLanes>::Vector Load(const float* from) {
  return *reinterpret_cast<const typename Lanes<kLanes>::Vector*>(from);
}

template <int kLanes>
ALWAYS_INLINE Four Folded(const typename Lanes<kLanes>::Vector& sums) {
  if constexpr (kLanes == 4) {
    return sums;
  } else {
    typename Lanes<kLanes / 2>::Vector low, high;
    std::memcpy(&low, &sums, sizeof(low));
    std::memcpy(&high, reinterpret_cast<const char*>(&sums) + sizeof(low), sizeof(high));
    return Folded<kLanes / 2>(low + high);
  }
}

// The sums of four vectors' elements, side by side.
ALWAYS_INLINE Four SumsOf(const Four& a, const Four& b, const Four& c, const Four& d) {
  const Four ab = Four{a[0], b[0], a[1], b[1]} + Four{a[2], b[2], a[3], b[3]};
  const Four cd = Four{c[0], d[0], c[1], d[1]} + Four{c[2], d[2], c[3], d[3]};
  return Four{ab[0], ab[1], cd[0], cd[1]} + Four{ab[2], ab[3], cd[2], cd[3]};
}

// A tile of results: as many sums as stay in the 16 registers of AVX2 beside what they are made of.
constexpr int kTileRows = 3, kTileColumns = 4;

constexpr int kMostLanes = 16;

// Products of a sample's vectors, those below the diagonal or on it too, row by row. vectors: (count, width), width a
// multiple of the lanes.
template <int kLanes>
ALWAYS_INLINE void Products(const float* vectors, int64_t count, int64_t width, bool diagonal, float* products) {
  for (int64_t top = 0; top < count; top += kTileRows) {
    const int64_t columns = std::min(top + kTileRows - 1, count - 1) + diagonal;
    // Where a tile hangs over, the last vector is taken again and its products are not kept.
    const float* rows[kTileRows];
    for (int r = 0; r < kTileRows; ++r) rows[r] = vectors + std::min(top + r, count - 1) * width;
    for (int64_t left = 0; left < columns; left += kTileColumns) {
      const float* others[kTileColumns];
      for (int c = 0; c < kTileColumns; ++c) others[c] = vectors + std::min(left + c, count - 1) * width;
      typename Lanes<kLanes>::Vector sums[kTileRows][kTileColumns];
      for (auto& row : sums) std::fill_n(row, kTileColumns, typename Lanes<kLanes>::Vector{});
      for (int64_t i = 0; i < width; i += kLanes) {
        for (int c = 0; c < kTileColumns; ++c) {
          const auto other = Load<kLanes>(others[c] + i);
          for (int r = 0; r < kTileRows; ++r) sums[r][c] += Load<kLanes>(rows[r] + i) * other;
        }
      }
      for (int r = 0; r < kTileRows && top + r < count; ++r) {
        const Four found = SumsOf(Folded<kLanes>(sums[r][0]), Folded<kLanes>(sums[r][1]), Folded<kLanes>(sums[r][2]),
                                Folded<kLanes>(sums[r][3]));
        const int64_t row = top + r, kept = row + diagonal - left;
        float* to = products + row * (row + (diagonal ? 1 : -1)) / 2 + left;
        if (kept >= kTileColumns) {
          std::memcpy(to, &found, sizeof(found));
        } else {
          for (int64_t c = 0; c < kept; ++c) to[c] = found[c];
        }
      }
    }
  }
}

// Sums of a sample's vectors with weights: of `width` elements from the i-th on, kVectors times the lanes of them.
template <int kLanes, int kVectors>
ALWAYS_INLINE void Tile(const float* const* weights, const float* vectors, int64_t count, int64_t width, int64_t i,
                 float* const* sums_to) {
  typename Lanes<kLanes>::Vector sums[kTileRows][kVectors];
  for (auto& row : sums) std::fill_n(row, kVectors, typename Lanes<kLanes>::Vector{});
  for (int64_t other = 0; other < count; ++other) {
    for (int v = 0; v < kVectors; ++v) {
      const auto values = Load<kLanes>(vectors + other * width + i + v * kLanes);
      for (int r = 0; r < kTileRows; ++r) sums[r][v] += weights[r][other] * values;
    }
  }
  for (int r = 0; r < kTileRows; ++r) std::memcpy(sums_to[r] + i, sums[r], sizeof(sums[r]));
}

// kTileRows weighted sums of a sample's vectors.
template <int kLanes>
ALWAYS_INLINE void Sums(const float* const* weights, const float* vectors, int64_t count, int64_t width,
                        float* const* to) {
  int64_t i = 0;
  for (; i + kTileColumns * kLanes <= width; i += kTileColumns * kLanes) {
    Tile<kLanes, kTileColumns>(weights, vectors, count, width, i, to);
  }
  for (; i < width; i += kLanes) Tile<kLanes, 1>(weights, vectors, count, width, i, to);
}

// The two for one instruction set.
struct Kernels {
  int64_t lanes;
  void (*products)(const float*, int64_t, int64_t, bool, float*);
  void (*sums)(const float* const*, const float*, int64_t, int64_t, float* const*);
};

#define DEFINE_KERNELS(NAME, LANES, ATTRIBUTES)                                                                      \
  ATTRIBUTES void Products##NAME(const float* vectors, int64_t count, int64_t width, bool diagonal, float* to) {     \
    Products<LANES>(vectors, count, width, diagonal, to);                                                            \
  }                                                                                                                  \
  ATTRIBUTES void Sums##NAME(const float* const* weights, const float* vectors, int64_t count, int64_t width,        \
                             float* const* to) {                                                                     \
    Sums<LANES>(weights, vectors, count, width, to);                                                                 \
  }                                                                                                                  \
  constexpr Kernels k##NAME = {LANES, Products##NAME, Sums##NAME};

DEFINE_KERNELS(AnyMachine, 4, )
#if defined(__x86_64__)
// By hand and not by target_clones as elsewhere: the number of lanes is another one for each, and "avx2" alone there has
// no fused multiply-add.
DEFINE_KERNELS(Avx2, 8, FOR_AVX2)
DEFINE_KERNELS(Avx512, 16, FOR_AVX512)
#endif

const Kernels& Fastest() {
#if defined(__x86_64__)
  return BestOf(kAnyMachine, kAvx2, kAvx512);
#else
  return kAnyMachine;
#endif
}

// What both operations are told.
struct Layout {
  explicit Layout(OpKernelConstruction* context) {
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim));
    OP_REQUIRES_OK(context, context->GetAttr("self_interaction", &diagonal));
    OP_REQUIRES_OK(context, context->GetAttr("pass_first", &pass_first));
  }

  int64_t passed() const { return pass_first ? dim : 0; }
  int64_t OutputWidth(int64_t count) const { return passed() + count * (count + (diagonal ? 1 : -1)) / 2; }
  int64_t PaddedDim(int64_t lanes) const { return (dim + lanes - 1) / lanes * lanes; }

  int64_t dim = 1;
  bool diagonal = false, pass_first = false;
};

// Where a vector is: that of the first sample, and how far it is to that of the next.
template <typename Value>
struct Place {
  Value* at(int64_t row) const { return first + row * stride; }

  Value* first;
  int64_t stride;
};

// The vectors of the samples as the inputs have them: one tensor (rows, number * dim) after the other.
class Vectors {
 public:
  Vectors(const OpInputList& inputs, const Layout& layout) : dim_(layout.dim) {
    for (const Tensor& input : inputs) {
      if (input.dims() != 2 || input.dim_size(0) != inputs[0].dim_size(0) || input.dim_size(1) % dim_ != 0) {
        status_ = tensorflow::errors::InvalidArgument("vectors of dimension ", dim_, " in a tensor of shape ",
                                                      input.shape().DebugString(), ", the first of shape ",
                                                      inputs[0].shape().DebugString());
        return;
      }
      for (int64_t i = 0; i < input.dim_size(1); i += dim_) {
        places_.push_back({input.flat<float>().data() + i, input.dim_size(1)});
      }
    }
    if (places_.empty() && layout.pass_first) {
      status_ = tensorflow::errors::InvalidArgument("there is no vector to pass on");
    }
    rows_ = inputs[0].dim_size(0);
  }

  const absl::Status& status() const { return status_; }
  int64_t rows() const { return rows_; }
  int64_t count() const { return static_cast<int64_t>(places_.size()); }

  // Copies a sample's vectors to `to`, (count, width); what is beyond a vector's dimension is left as it is.
  void Gather(int64_t row, int64_t width, float* to) const {
    for (const auto& place : places_) {
      std::memcpy(to, place.at(row), sizeof(float) * dim_);
      to += width;
    }
  }

 private:
  int64_t dim_, rows_ = 0;
  std::vector<Place<const float>> places_;
  absl::Status status_;
};

// Zeros to work in, where vector registers do not meet the borders of cache lines.
class Workspace {
 public:
  explicit Workspace(int64_t size) : values_(size + kMostLanes) {}

  float* data() {
    const auto address = reinterpret_cast<uintptr_t>(values_.data()), line = sizeof(float) * kMostLanes;
    return reinterpret_cast<float*>((address + line - 1) / line * line);
  }

 private:
  std::vector<float> values_;
};

class DotInteraction : public OpKernel {
 public:
  explicit DotInteraction(OpKernelConstruction* context) : OpKernel(context), layout_(context) {}

  void Compute(OpKernelContext* context) override {
    OpInputList inputs;
    OP_REQUIRES_OK(context, context->input_list("vectors", &inputs));
    const Vectors vectors(inputs, layout_);
    OP_REQUIRES_OK(context, vectors.status());
    const int64_t count = vectors.count(), dim = layout_.dim, out_width = layout_.OutputWidth(count);
    Tensor* outputs = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({vectors.rows(), out_width}), &outputs));
    float* out = outputs->flat<float>().data();
    const Kernels& kernels = Fastest();
    const int64_t width = layout_.PaddedDim(kernels.lanes), passed = layout_.passed();
    ParallelFor(context, vectors.rows(), 1, count * (count + dim * count / 16), [&](int64_t first, int64_t last) {
      Workspace workspace(count * width);
      for (int64_t row = first; row < last; ++row) {
        float* to = out + row * out_width;
        vectors.Gather(row, width, workspace.data());
        std::copy_n(workspace.data(), passed, to);
        kernels.products(workspace.data(), count, width, layout_.diagonal, to + passed);
      }
    });
  }

 private:
  Layout layout_;
};

class DotInteractionGradient : public OpKernel {
 public:
  explicit DotInteractionGradient(OpKernelConstruction* context) : OpKernel(context), layout_(context) {}

  void Compute(OpKernelContext* context) override {
    OpInputList inputs;
    OP_REQUIRES_OK(context, context->input_list("vectors", &inputs));
    const Vectors vectors(inputs, layout_);
    OP_REQUIRES_OK(context, vectors.status());
    const Tensor& upstream = context->input(inputs.size());
    const int64_t count = vectors.count(), dim = layout_.dim, out_width = layout_.OutputWidth(count);
    OP_REQUIRES(context, upstream.dims() == 2 && upstream.dim_size(0) == vectors.rows() &&
                             upstream.dim_size(1) == out_width,
                tensorflow::errors::InvalidArgument("gradient of shape ", upstream.shape().DebugString(), " for ",
                                                    vectors.rows(), " rows of width ", out_width));
    std::vector<Place<float>> places;
    for (int i = 0; i < inputs.size(); ++i) {
      // A sample's vectors are copied before their gradients are written: these may take their place.
      Tensor* gradient = nullptr;
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({i}, i, inputs[i].shape(), &gradient));
      for (int64_t at = 0; at < inputs[i].dim_size(1); at += dim) {
        places.push_back({gradient->flat<float>().data() + at, inputs[i].dim_size(1)});
      }
    }
    const float* from = upstream.flat<float>().data();
    const Kernels& kernels = Fastest();
    const int64_t width = layout_.PaddedDim(kernels.lanes);
    ParallelFor(context, vectors.rows(), 1, count * (count + dim * count / 8), [&](int64_t first, int64_t last) {
      Workspace copies(count * width), overhang(kTileRows * width);
      std::vector<float> symmetric(count * count);
      for (int64_t row = first; row < last; ++row) {
        const float* own = from + row * out_width;
        vectors.Gather(row, width, copies.data());
        Spread(own + layout_.passed(), count, symmetric.data());
        for (int64_t top = 0; top < count; top += kTileRows) {
          const float* weights[kTileRows];
          float* to[kTileRows];
          for (int r = 0; r < kTileRows; ++r) {
            // Sums that hang over the last vector are not kept, and wider ones than vectors not as they are.
            const bool whole = top + r < count && width == dim;
            weights[r] = symmetric.data() + std::min(top + r, count - 1) * count;
            to[r] = whole ? places[top + r].at(row) : overhang.data() + r * width;
          }
          kernels.sums(weights, copies.data(), count, width, to);
          if (width == dim) continue;
          for (int r = 0; r < kTileRows && top + r < count; ++r) std::copy_n(to[r], dim, places[top + r].at(row));
        }
        if (layout_.pass_first) Add(own, dim, places[0].at(row));
      }
    });
  }

 private:
  static void Add(const float* values, int64_t size, float* to) {
    for (int64_t i = 0; i < size; ++i) to[i] += values[i];
  }

  // From the gradients of the products to a matrix whose product with the vectors is the vectors' gradient.
  void Spread(const float* gradients, int64_t count, float* symmetric) const {
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t other = 0; other < row; ++other) {
        symmetric[row * count + other] = symmetric[other * count + row] = *gradients++;
      }
      // A square's derivative is twice its root.
      symmetric[row * count + row] = layout_.diagonal ? 2 * *gradients++ : 0.0f;
    }
  }

  Layout layout_;
};

absl::Status InteractionShape(tensorflow::shape_inference::InferenceContext* context) {
  using tensorflow::shape_inference::InferenceContext;
  int64_t dim;
  bool diagonal, pass_first;
  TF_RETURN_IF_ERROR(context->GetAttr("dim", &dim));
  TF_RETURN_IF_ERROR(context->GetAttr("self_interaction", &diagonal));
  TF_RETURN_IF_ERROR(context->GetAttr("pass_first", &pass_first));
  tensorflow::shape_inference::DimensionHandle rows = context->UnknownDim();
  int64_t count = 0;
  bool known = true;
  for (int i = 0; i < context->num_inputs(); ++i) {
    tensorflow::shape_inference::ShapeHandle vectors;
    TF_RETURN_IF_ERROR(context->WithRank(context->input(i), 2, &vectors));
    TF_RETURN_IF_ERROR(context->Merge(rows, context->Dim(vectors, 0), &rows));
    known = known && context->ValueKnown(context->Dim(vectors, 1));
    if (known) count += context->Value(context->Dim(vectors, 1)) / dim;
  }
  const int64_t width = (pass_first ? dim : 0) + count * (count + (diagonal ? 1 : -1)) / 2;
  context->set_output(0, context->Matrix(rows, known ? width : InferenceContext::kUnknownDim));
  return absl::OkStatus();
}

absl::Status GradientShapes(tensorflow::shape_inference::InferenceContext* context) {
  for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
  return absl::OkStatus();
}

// Tensors (rows, number * dim) of vectors -> (rows, width): the first vector, if it is to be passed on, and the products
// of all pairs in the order of models.interaction.dot_interaction.
REGISTER_OP("RecsysDotInteraction")
    .Input("vectors: count * float")
    .Output("outputs: float")
    .Attr("count: int >= 1")
    .Attr("dim: int >= 1")
    .Attr("self_interaction: bool")
    .Attr("pass_first: bool")
    .SetShapeFn(InteractionShape);

REGISTER_OP("RecsysDotInteractionGradient")
    .Input("vectors: count * float")
    .Input("upstream: float")
    .Output("gradients: count * float")
    .Attr("count: int >= 1")
    .Attr("dim: int >= 1")
    .Attr("self_interaction: bool")
    .Attr("pass_first: bool")
    .SetShapeFn(GradientShapes);

REGISTER_KERNEL_BUILDER(Name("RecsysDotInteraction").Device(tensorflow::DEVICE_CPU), DotInteraction)
REGISTER_KERNEL_BUILDER(Name("RecsysDotInteractionGradient").Device(tensorflow::DEVICE_CPU), DotInteractionGradient)

}  // namespace
}  // namespace recsys_harness
