// Products of dense layers in float32, on CPUs, by OpenBLAS.
//
// TensorFlow's MatMul was measured at 75 to 80 % of OpenBLAS's speed at Wide & Deep's shapes on processors without
// AVX-512, and at 15 to 70 % of it at DLRM's batches of 64 rows, worst where the right matrix is transposed, as it is for
// the gradient of a layer's input. OpenBLAS is called with one thread by each of TensorFlow's: threads of its own would
// wait for work in loops that take the processor from whatever runs next. models/layers.py has the layer;
// models/custom_ops.py builds and loads this file, and OpenBLAS comes with the package scipy-openblas32.

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cblas.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "team.h"

namespace recsys_harness {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int64_t kManyRows = 512;         // from here on a thread has enough rows for whole panels
constexpr int64_t kMultiplyAddsOfANanosecond = 16;
constexpr int64_t kPartsOfAThread = 1;     // the library copies a matrix for each

void UseOneThread() {
  static const bool done = [] {
    scipy_openblas_set_num_threads(1);
    return true;
  }();
  (void)done;
}

// c (m, n) = a (m, k) b (k, n) + bias (n,), a and b as they lie in memory or transposed. Lines of c are split over
// threads where there are many, and columns where there are few.
struct Product {
  const float* a;
  const float* b;
  const float* bias;  // may be null
  float* c;
  int64_t m, n, k;
  bool transpose_a, transpose_b;

  void Lines(int64_t first, int64_t last) const {
    Part(last - first, n, transpose_a ? a + first : a + first * k, b, bias, c + first * n);
  }

  void Columns(int64_t first, int64_t last) const {
    Part(m, last - first, a, transpose_b ? b + first * k : b + first, bias == nullptr ? bias : bias + first, c + first);
  }

 private:
  void Part(int64_t lines, int64_t columns, const float* from_a, const float* from_b, const float* add,
            float* to) const {
    scipy_cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans,
                      static_cast<int>(lines), static_cast<int>(columns), static_cast<int>(k), 1.0f, from_a,
                      Leading(transpose_a ? m : k), from_b, Leading(transpose_b ? k : n), 0.0f, to,
                      static_cast<int>(n));
    if (add == nullptr) return;
    for (int64_t line = 0; line < lines; ++line) AddBias(to + line * n, add, columns);
  }

  // BLAS wants at least 1, also of a matrix without elements.
  static int Leading(int64_t width) { return static_cast<int>(std::max<int64_t>(1, width)); }

  static void AddBias(float* __restrict to, const float* __restrict add, int64_t columns) {
    for (int64_t i = 0; i < columns; ++i) to[i] += add[i];
  }
};

bool FitsInt(int64_t a, int64_t b, int64_t c) {
  constexpr int64_t most = std::numeric_limits<int>::max();
  return a <= most && b <= most && c <= most;
}

void Run(OpKernelContext* context, const Product& product) {
  UseOneThread();
  // Of one line or column.
  const auto cost = [&product](int64_t other) { return product.k * other / kMultiplyAddsOfANanosecond; };
  if (product.m >= kManyRows || product.m >= product.n) {
    ParallelFor(context, product.m, 8, cost(product.n),
                [&](int64_t first, int64_t last) { product.Lines(first, last); }, kPartsOfAThread);
  } else {
    ParallelFor(context, product.n, 16, cost(product.m),
                [&](int64_t first, int64_t last) { product.Columns(first, last); }, kPartsOfAThread);
  }
}

class Dense : public OpKernel {
 public:
  explicit Dense(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    const Tensor& inputs = context->input(0);
    const Tensor& kernel = context->input(1);
    const Tensor& bias = context->input(2);
    OP_REQUIRES(context,
                inputs.dims() == 2 && kernel.dims() == 2 && bias.dims() == 1 &&
                    inputs.dim_size(1) == kernel.dim_size(0) && kernel.dim_size(1) == bias.dim_size(0),
                tensorflow::errors::InvalidArgument("inputs ", inputs.shape().DebugString(), ", kernel ",
                                                    kernel.shape().DebugString(), " and bias ",
                                                    bias.shape().DebugString(), " do not fit"));
    const int64_t rows = inputs.dim_size(0), width = inputs.dim_size(1), units = kernel.dim_size(1);
    OP_REQUIRES(context, FitsInt(rows, width, units), tensorflow::errors::InvalidArgument("a matrix is too large"));
    Tensor* outputs = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({rows, units}), &outputs));
    if (outputs->NumElements() == 0) return;
    Run(context, {inputs.flat<float>().data(), kernel.flat<float>().data(), bias.flat<float>().data(),
                  outputs->flat<float>().data(), rows, units, width, false, false});
  }
};

class MatMul : public OpKernel {
 public:
  explicit MatMul(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("transpose_a", &transpose_a_));
    OP_REQUIRES_OK(context, context->GetAttr("transpose_b", &transpose_b_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& a = context->input(0);
    const Tensor& b = context->input(1);
    OP_REQUIRES(context, a.dims() == 2 && b.dims() == 2,
                tensorflow::errors::InvalidArgument("matrices expected, got ", a.shape().DebugString(), " and ",
                                                    b.shape().DebugString()));
    const int64_t m = a.dim_size(transpose_a_ ? 1 : 0), k = a.dim_size(transpose_a_ ? 0 : 1);
    const int64_t n = b.dim_size(transpose_b_ ? 0 : 1);
    OP_REQUIRES(context, b.dim_size(transpose_b_ ? 1 : 0) == k,
                tensorflow::errors::InvalidArgument("matrices do not fit: ", a.shape().DebugString(), " and ",
                                                    b.shape().DebugString()));
    OP_REQUIRES(context, FitsInt(m, n, k), tensorflow::errors::InvalidArgument("a matrix is too large"));
    Tensor* product = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({m, n}), &product));
    if (product->NumElements() == 0) return;
    Run(context, {a.flat<float>().data(), b.flat<float>().data(), nullptr, product->flat<float>().data(), m, n, k,
                  transpose_a_, transpose_b_});
  }

 private:
  bool transpose_a_, transpose_b_;
};

absl::Status DenseShape(tensorflow::shape_inference::InferenceContext* context) {
  tensorflow::shape_inference::ShapeHandle inputs, kernel;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &inputs));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 2, &kernel));
  context->set_output(0, context->Matrix(context->Dim(inputs, 0), context->Dim(kernel, 1)));
  return absl::OkStatus();
}

absl::Status MatMulShape(tensorflow::shape_inference::InferenceContext* context) {
  bool transpose_a, transpose_b;
  TF_RETURN_IF_ERROR(context->GetAttr("transpose_a", &transpose_a));
  TF_RETURN_IF_ERROR(context->GetAttr("transpose_b", &transpose_b));
  tensorflow::shape_inference::ShapeHandle a, b;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &a));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 2, &b));
  context->set_output(0, context->Matrix(context->Dim(a, transpose_a ? 1 : 0), context->Dim(b, transpose_b ? 0 : 1)));
  return absl::OkStatus();
}

// inputs (rows, width), kernel (width, units), bias (units,) -> inputs kernel + bias, (rows, units).
REGISTER_OP("RecsysDense")
    .Input("inputs: float")
    .Input("kernel: float")
    .Input("bias: float")
    .Output("outputs: float")
    .SetShapeFn(DenseShape);

// a b, each transposed first if asked for.
REGISTER_OP("RecsysMatMul")
    .Input("a: float")
    .Input("b: float")
    .Output("product: float")
    .Attr("transpose_a: bool = false")
    .Attr("transpose_b: bool = false")
    .SetShapeFn(MatMulShape);

REGISTER_KERNEL_BUILDER(Name("RecsysDense").Device(tensorflow::DEVICE_CPU), Dense)
REGISTER_KERNEL_BUILDER(Name("RecsysMatMul").Device(tensorflow::DEVICE_CPU), MatMul)

}  // namespace
}  // namespace recsys_harness
