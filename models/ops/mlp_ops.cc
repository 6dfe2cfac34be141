// Dense layers with bias and ReLU, one after the other, on few rows, in float32, on CPUs: forward and backward.
//
// At batches of 64 the products of a library reach 125 of 197 GFLOP/s (two cores of a Zen 3): each wakes the second
// thread anew, which costs as much as a quarter of the product, and copies the weights into an order of its own for
// rows that are not there. Here all layers are one operation whose threads are woken once and take pieces of work as
// they come, and the rows of a batch lie side by side in a vector, so that weights are read once, mostly where they lie.
//
// models/ops/mlp_pieces.h has the arithmetic and says how samples lie in memory;
// models/layers.py has the layer and says when it is used; tests hold it to TensorFlow's kernels and to numpy.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "mlp_pieces.h"
#include "team.h"

namespace recsys_harness {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpInputList;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int64_t kWorkOfAThread = 1 << 19;  // multiply-adds that are worth waking a thread

TensorShape PanelShape(int64_t rows, int64_t width) {
  const int64_t panel = Best().panel;
  // The last tile of the last panel is read whole.
  return TensorShape({CeilDiv(rows, panel) * width + kTile, panel});
}

float* Data(Tensor& tensor) { return tensor.flat<float>().data(); }
const float* Data(const Tensor& tensor) { return tensor.flat<float>().data(); }

class Mlp : public OpKernel {
 public:
  explicit Mlp(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    const Tensor& inputs = context->input(0);
    OpInputList kernels, biases;
    OP_REQUIRES_OK(context, context->input_list("kernels", &kernels));
    OP_REQUIRES_OK(context, context->input_list("biases", &biases));
    OP_REQUIRES(context, inputs.dims() == 2 && inputs.dim_size(0) <= kMostRows,
                tensorflow::errors::InvalidArgument("inputs must be a matrix of at most ", kMostRows, " rows, got ",
                                                    inputs.shape().DebugString()));
    const int64_t rows = inputs.dim_size(0), layers = kernels.size();
    int64_t width = inputs.dim_size(1), multiply_adds = 0;
    for (int64_t i = 0; i < layers; ++i) {
      OP_REQUIRES(context, kernels[i].dims() == 2 && kernels[i].dim_size(0) == width &&
                               biases[i].NumElements() == kernels[i].dim_size(1),
                  tensorflow::errors::InvalidArgument("kernel ", kernels[i].shape().DebugString(), " and bias ",
                                                      biases[i].shape().DebugString(), " for inputs of ", width));
      multiply_adds += rows * kernels[i].NumElements();
      width = kernels[i].dim_size(1);
    }
    Tensor* outputs = nullptr;
    OpOutputList panels;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({rows, width}), &outputs));
    OP_REQUIRES_OK(context, context->output_list("panels", &panels));
    const Instructions& own = Best();
    auto work = std::make_shared<Work>();
    std::vector<Layer> all(layers);
    for (int64_t i = 0; i < layers; ++i) {
      Tensor* panel = nullptr;
      OP_REQUIRES_OK(context, panels.allocate(i, PanelShape(rows, kernels[i].dim_size(0)), &panel));
      all[i] = Layer{Data(kernels[i]), Data(biases[i]), kernels[i].dim_size(0), kernels[i].dim_size(1), rows,
                     CeilDiv(rows, own.panel)};
      all[i].x = Data(*panel);
      if (i > 0) all[i - 1].y = Data(*panel);
    }
    all.back().y_rows = Data(*outputs);
    if (rows == 0) return;
    float* x = const_cast<float*>(all[0].x);
    int phase = work->Phase(CeilDiv(all[0].width, kColumns), -1, [&](int64_t piece) {
      const int64_t first = piece * kColumns, last = std::min(first + kColumns, all[0].width);
      own.pack(Data(inputs), nullptr, rows, all[0].width, first, last, x, nullptr);
    });
    for (const Layer& layer : all) {
      phase = work->Phase(CeilDiv(layer.units, kLines), phase,
                          [&](int64_t piece) { own.forward(layer, piece * kLines); });
    }
    RunOnTeam(context, work, multiply_adds / kWorkOfAThread + 1);
  }
};

class MlpGradient : public OpKernel {
 public:
  explicit MlpGradient(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("of_inputs", &of_inputs_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& upstream = context->input(0);
    const Tensor& outputs = context->input(1);
    OpInputList kernels, panels;
    OP_REQUIRES_OK(context, context->input_list("kernels", &kernels));
    OP_REQUIRES_OK(context, context->input_list("panels", &panels));
    const int64_t layers = kernels.size(), rows = upstream.dim_size(0);
    OP_REQUIRES(context, upstream.dims() == 2 && upstream.shape() == outputs.shape() && rows <= kMostRows &&
                             kernels[layers - 1].dim_size(1) == upstream.dim_size(1),
                tensorflow::errors::InvalidArgument("gradient of shape ", upstream.shape().DebugString(),
                                                    " of outputs of shape ", outputs.shape().DebugString()));
    for (int64_t i = 0; i < layers; ++i) {
      OP_REQUIRES(context, panels[i].shape() == PanelShape(rows, kernels[i].dim_size(0)),
                  tensorflow::errors::InvalidArgument("panels of shape ", panels[i].shape().DebugString()));
    }
    Tensor* input_gradient = nullptr;
    OpOutputList kernel_gradients, bias_gradients;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, of_inputs_ ? TensorShape({rows, kernels[0].dim_size(0)}) : TensorShape({0, 0}),
                                &input_gradient));
    OP_REQUIRES_OK(context, context->output_list("kernel_gradients", &kernel_gradients));
    OP_REQUIRES_OK(context, context->output_list("bias_gradients", &bias_gradients));
    const Instructions& own = Best();
    const int64_t count = CeilDiv(rows, own.panel), samples = count * own.panel;
    auto work = std::make_shared<Work>();
    std::vector<Layer> all(layers);
    std::vector<Tensor> gradients(2 * layers);  // of each layer's outputs, before ReLU, in both orders
    int64_t multiply_adds = 0;
    for (int64_t i = 0; i < layers; ++i) {
      const int64_t width = kernels[i].dim_size(0), units = kernels[i].dim_size(1);
      Tensor *kernel = nullptr, *bias = nullptr;
      OP_REQUIRES_OK(context, kernel_gradients.allocate(i, kernels[i].shape(), &kernel));
      OP_REQUIRES_OK(context, bias_gradients.allocate(i, TensorShape({units}), &bias));
      OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_FLOAT, PanelShape(rows, units), &gradients[2 * i]));
      OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_FLOAT,
                                                     TensorShape({CeilDiv(units, own.panel), samples, own.panel}),
                                                     &gradients[2 * i + 1]));
      all[i] = Layer{Data(kernels[i]), nullptr, width, units, rows, count};
      all[i].x = Data(panels[i]);
      all[i].dy = Data(gradients[2 * i]);
      all[i].dy_rows = Data(gradients[2 * i + 1]);
      all[i].kernel_gradient = Data(*kernel), all[i].bias_gradient = Data(*bias);
      if (i > 0) all[i].dx = Data(gradients[2 * i - 2]), all[i].dx_rows = Data(gradients[2 * i - 1]);
      multiply_adds += 2 * rows * width * units;
    }
    if (of_inputs_) all[0].input_gradient = Data(*input_gradient);
    const int64_t units = all.back().units;
    float *last = Data(gradients[2 * layers - 2]), *last_rows = Data(gradients[2 * layers - 1]);
    int phase = work->Phase(CeilDiv(units, kColumns), -1, [&](int64_t piece) {
      const int64_t first = piece * kColumns;
      own.pack(Data(upstream), Data(outputs), rows, units, first, std::min(first + kColumns, units), last, last_rows);
    });
    for (int64_t i = layers - 1; i >= 0; --i) {
      const Layer& layer = all[i];
      const int known = phase;  // when the gradient of the layer's outputs is
      if (i > 0 || of_inputs_) {
        phase = work->Phase(CeilDiv(layer.width, kLines), known,
                            [&](int64_t piece) { own.input_gradient(layer, piece * kLines); });
      }
      // Behind it, to have something to do while the last of it is worked out.
      const int64_t lines = PartSize(layer.width, kTile, 256), parts = CeilDiv(layer.width, lines);
      work->Phase(parts * CeilDiv(layer.units, kColumns), known, [&layer, &own, lines, parts](int64_t piece) {
        const int64_t first = piece % parts * lines;
        own.kernel_gradient(layer, first, std::min(first + lines, layer.width), piece / parts * kColumns);
      });
    }
    RunOnTeam(context, work, multiply_adds / kWorkOfAThread + 1);
  }

 private:
  bool of_inputs_;
};

absl::Status MlpShape(tensorflow::shape_inference::InferenceContext* context) {
  int64_t layers;
  TF_RETURN_IF_ERROR(context->GetAttr("N", &layers));
  tensorflow::shape_inference::ShapeHandle inputs, kernel;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &inputs));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(layers), 2, &kernel));
  context->set_output(0, context->Matrix(context->Dim(inputs, 0), context->Dim(kernel, 1)));
  for (int64_t i = 1; i <= layers; ++i) context->set_output(i, context->UnknownShapeOfRank(2));
  return absl::OkStatus();
}

absl::Status MlpGradientShape(tensorflow::shape_inference::InferenceContext* context) {
  int64_t layers;
  TF_RETURN_IF_ERROR(context->GetAttr("N", &layers));
  context->set_output(0, context->UnknownShapeOfRank(2));
  for (int64_t i = 0; i < layers; ++i) {
    tensorflow::shape_inference::ShapeHandle kernel;
    TF_RETURN_IF_ERROR(context->WithRank(context->input(2 + i), 2, &kernel));
    context->set_output(1 + i, kernel);
    context->set_output(1 + layers + i, context->Vector(context->Dim(kernel, 1)));
  }
  return absl::OkStatus();
}

// inputs (rows, width), kernels (width, units), biases (units,) of each layer -> the last layer's outputs (rows, units)
// and, for the gradient, the inputs of each layer in panels.
REGISTER_OP("RecsysMlp")
    .Input("inputs: float")
    .Input("kernels: N * float")
    .Input("biases: N * float")
    .Output("outputs: float")
    .Output("panels: N * float")
    .Attr("N: int >= 1")
    .Attr("of_inputs: bool = true")
    .SetShapeFn(MlpShape);

// Gradients of the inputs (0 x 0 unless asked for by `of_inputs`), of the kernels and of the biases.
REGISTER_OP("RecsysMlpGradient")
    .Input("upstream: float")
    .Input("outputs: float")
    .Input("kernels: N * float")
    .Input("panels: N * float")
    .Output("input_gradient: float")
    .Output("kernel_gradients: N * float")
    .Output("bias_gradients: N * float")
    .Attr("N: int >= 1")
    .Attr("of_inputs: bool")
    .SetShapeFn(MlpGradientShape);

REGISTER_KERNEL_BUILDER(Name("RecsysMlp").Device(tensorflow::DEVICE_CPU), Mlp)
REGISTER_KERNEL_BUILDER(Name("RecsysMlpGradient").Device(tensorflow::DEVICE_CPU), MlpGradient)

}  // namespace
}  // namespace recsys_harness
