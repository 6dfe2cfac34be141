// Dense layers with bias and ReLU, one after the other, and one without ReLU if asked for, on few rows, in float32, on CPUs: forward and backward.
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
#include "variables.h"

namespace recsys_harness {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpInputList;
using tensorflow::OpOutputList;
using tensorflow::Status;
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

// The weights of layers: what a list names, as they are now.
Status Read(OpKernelContext* context, const char* name, std::vector<Tensor>* found) {
  OpInputList list;
  TF_RETURN_IF_ERROR(context->input_list(name, &list));
  for (int i = 0; i < list.size(); ++i) {
    if (list[i].dtype() != tensorflow::DT_RESOURCE) {
      found->push_back(list[i]);
      continue;
    }
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    TF_RETURN_IF_ERROR(
        tensorflow::LookupResource(context, list[i].scalar<tensorflow::ResourceHandle>()(), &variable));
    tensorflow::tf_shared_lock lock(*variable->mu());
    found->push_back(*variable->tensor());
  }
  return tensorflow::OkStatus();
}

class Mlp : public OpKernel {
 public:
  explicit Mlp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("linear_last", &linear_last_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& inputs = context->input(0);
    std::vector<Tensor> kernels, biases;
    OP_REQUIRES_OK(context, Read(context, "kernels", &kernels));
    OP_REQUIRES_OK(context, Read(context, "biases", &biases));
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
    all.back().linear = linear_last_;
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

 private:
  bool linear_last_;
};

// The gradients of the inputs and of the weights, or, where the weights are variables, a step against their gradients.
class MlpGradient : public OpKernel {
 public:
  explicit MlpGradient(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("of_inputs", &of_inputs_));
    OP_REQUIRES_OK(context, context->GetAttr("linear_last", &linear_last_));
    trains_ = context->input_type(2) == tensorflow::DT_RESOURCE;
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& upstream = context->input(0);
    const Tensor& outputs = context->input(1);
    OpInputList panels;
    std::vector<Tensor> kernels;
    OP_REQUIRES_OK(context, Read(context, "kernels", &kernels));
    OP_REQUIRES_OK(context, context->input_list("panels", &panels));
    const int64_t layers = panels.size(), rows = upstream.dim_size(0);
    OP_REQUIRES(context, upstream.dims() == 2 && upstream.shape() == outputs.shape() && rows <= kMostRows &&
                             kernels[layers - 1].dim_size(1) == upstream.dim_size(1),
                tensorflow::errors::InvalidArgument("gradient of shape ", upstream.shape().DebugString(),
                                                    " of outputs of shape ", outputs.shape().DebugString()));
    for (int64_t i = 0; i < layers; ++i) {
      OP_REQUIRES(context, panels[i].shape() == PanelShape(rows, kernels[i].dim_size(0)),
                  tensorflow::errors::InvalidArgument("panels of shape ", panels[i].shape().DebugString()));
    }
    Tensor* input_gradient = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, of_inputs_ ? TensorShape({rows, kernels[0].dim_size(0)}) : TensorShape({0, 0}),
                                &input_gradient));
    const Instructions& own = Best();
    const int64_t count = CeilDiv(rows, own.panel), samples = count * own.panel;
    auto work = std::make_shared<Work>();
    std::vector<Layer> all(layers);
    std::vector<Tensor> gradients(2 * layers);  // of each layer's outputs, before ReLU, in both orders
    int64_t multiply_adds = 0;
    for (int64_t i = 0; i < layers; ++i) {
      const int64_t width = kernels[i].dim_size(0), units = kernels[i].dim_size(1);
      OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_FLOAT, PanelShape(rows, units), &gradients[2 * i]));
      OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_FLOAT,
                                                     TensorShape({CeilDiv(units, own.panel), samples, own.panel}),
                                                     &gradients[2 * i + 1]));
      all[i] = Layer{Data(kernels[i]), nullptr, width, units, rows, count};
      all[i].x = Data(panels[i]);
      all[i].dy = Data(gradients[2 * i]);
      all[i].dy_rows = Data(gradients[2 * i + 1]);
      if (i > 0) all[i].dx = Data(gradients[2 * i - 2]), all[i].dx_rows = Data(gradients[2 * i - 1]);
      multiply_adds += 2 * rows * width * units;
    }
    LockedVariables variables;
    if (trains_) {
      kernels.clear();  // or they would count as somebody who still reads the values of now
      OP_REQUIRES_OK(context, Train(context, &variables, &all));
    } else {
      OP_REQUIRES_OK(context, WriteGradients(context, &all));
    }
    if (of_inputs_) all[0].input_gradient = Data(*input_gradient);
    const int64_t units = all.back().units;
    float *last = Data(gradients[2 * layers - 2]), *last_rows = Data(gradients[2 * layers - 1]);
    int phase = work->Phase(CeilDiv(units, kColumns), -1, [&](int64_t piece) {
      const int64_t first = piece * kColumns;
      own.pack(Data(upstream), linear_last_ ? nullptr : Data(outputs), rows, units, first, std::min(first + kColumns, units), last, last_rows);
    });
    const auto of_weights = [&](const Layer& layer, int after) {
      const int64_t lines = PartSize(layer.width, kTile, 256), parts = CeilDiv(layer.width, lines);
      work->Phase(parts * CeilDiv(layer.units, kColumns), after, [&layer, &own, lines, parts](int64_t piece) {
        const int64_t first = piece % parts * lines;
        own.kernel_gradient(layer, first, std::min(first + lines, layer.width), piece / parts * kColumns);
      });
    };
    // The weights of a layer come behind the inputs of the layer before it: by then nobody reads them any more, so that
    // they can be changed, and there is something to do while the last of those inputs are worked out.
    for (int64_t i = layers - 1; i >= 0; --i) {
      const Layer& layer = all[i];
      const int known = phase;  // when the gradient of the layer's outputs is
      if (i > 0 || of_inputs_) {
        phase = work->Phase(CeilDiv(layer.width, kLines), known,
                            [&](int64_t piece) { own.input_gradient(layer, piece * kLines); });
      }
      if (i + 1 < layers) of_weights(all[i + 1], known);
    }
    of_weights(all[0], phase);
    RunOnTeam(context, work, multiply_adds / kWorkOfAThread + 1);
  }

 private:
  // Where the gradients of the weights go: to the outputs.
  static Status WriteGradients(OpKernelContext* context, std::vector<Layer>* layers) {
    OpOutputList kernels, biases;
    TF_RETURN_IF_ERROR(context->output_list("kernel_gradients", &kernels));
    TF_RETURN_IF_ERROR(context->output_list("bias_gradients", &biases));
    for (size_t i = 0; i < layers->size(); ++i) {
      Layer& layer = (*layers)[i];
      Tensor *kernel = nullptr, *bias = nullptr;
      TF_RETURN_IF_ERROR(kernels.allocate(i, TensorShape({layer.width, layer.units}), &kernel));
      TF_RETURN_IF_ERROR(biases.allocate(i, TensorShape({layer.units}), &bias));
      layer.kernel_gradient = Data(*kernel), layer.bias_gradient = Data(*bias);
    }
    return tensorflow::OkStatus();
  }

  // The variables, which are `variables` from now on, take them off instead.
  static Status Train(OpKernelContext* context, LockedVariables* variables, std::vector<Layer>* layers) {
    OpInputList kernels, biases;
    const Tensor* rate = nullptr;
    TF_RETURN_IF_ERROR(context->input_list("kernels", &kernels));
    TF_RETURN_IF_ERROR(context->input_list("biases", &biases));
    TF_RETURN_IF_ERROR(context->input("rate", &rate));
    TF_RETURN_IF_ERROR(variables->Lock(context, {&kernels, &biases}));
    const int64_t count = layers->size();
    for (int64_t i = 0; i < count; ++i) {
      Layer& layer = (*layers)[i];
      Tensor *kernel = variables->values(i), *bias = variables->values(count + i);
      if (kernel->shape() != TensorShape({layer.width, layer.units}) || bias->NumElements() != layer.units) {
        return tensorflow::errors::InvalidArgument("kernel ", kernel->shape().DebugString(), " and bias ",
                                                   bias->shape().DebugString(), " for a layer of ", layer.width, " x ",
                                                   layer.units);
      }
      TF_RETURN_IF_ERROR(KeepForReaders(context, kernel));
      TF_RETURN_IF_ERROR(KeepForReaders(context, bias));
      layer.kernel = layer.trained_kernel = Data(*kernel);
      layer.trained_bias = Data(*bias);
      layer.rate = rate->scalar<float>()();
    }
    return tensorflow::OkStatus();
  }

  bool of_inputs_, linear_last_, trains_;
};

// Shape of input `i`, which may be a variable.
tensorflow::shape_inference::ShapeHandle ShapeOf(tensorflow::shape_inference::InferenceContext* context, int i) {
  const auto* of_variable = context->input_handle_shapes_and_types(i);
  return of_variable == nullptr || of_variable->empty() ? context->input(i) : of_variable->front().shape;
}

absl::Status MlpShape(tensorflow::shape_inference::InferenceContext* context) {
  int64_t layers;
  TF_RETURN_IF_ERROR(context->GetAttr("N", &layers));
  tensorflow::shape_inference::ShapeHandle inputs, kernel;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &inputs));
  TF_RETURN_IF_ERROR(context->WithRank(ShapeOf(context, layers), 2, &kernel));
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

absl::Status TrainMlpShape(tensorflow::shape_inference::InferenceContext* context) {
  context->set_output(0, context->UnknownShapeOfRank(2));
  return absl::OkStatus();
}

// inputs (rows, width), kernels (width, units), biases (units,) of each layer -> the last layer's outputs (rows, units),
// through ReLU unless `linear_last`, and, for the gradient, the inputs of each layer in panels.
REGISTER_OP("RecsysMlp")
    .Input("inputs: float")
    .Input("kernels: N * float")
    .Input("biases: N * float")
    .Output("outputs: float")
    .Output("panels: N * float")
    .Attr("N: int >= 1")
    .Attr("of_inputs: bool = true")
    .Attr("linear_last: bool = false")
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
    .Attr("linear_last: bool = false")
    .SetShapeFn(MlpGradientShape);

// The same with variables as weights, which its gradient trains: RecsysTrainMlp.
REGISTER_OP("RecsysTrainedMlp")
    .Input("inputs: float")
    .Input("kernels: N * resource")
    .Input("biases: N * resource")
    .Output("outputs: float")
    .Output("panels: N * float")
    .Attr("N: int >= 1")
    .Attr("of_inputs: bool = true")
    .Attr("linear_last: bool = false")
    .SetIsStateful()
    .SetShapeFn(MlpShape);

// The gradient of the inputs as above; kernels and biases -= rate * their gradients, in place.
REGISTER_OP("RecsysTrainMlp")
    .Input("upstream: float")
    .Input("outputs: float")
    .Input("kernels: N * resource")
    .Input("biases: N * resource")
    .Input("panels: N * float")
    .Input("rate: float")
    .Output("input_gradient: float")
    .Attr("N: int >= 1")
    .Attr("of_inputs: bool")
    .Attr("linear_last: bool = false")
    .SetIsStateful()
    .SetShapeFn(TrainMlpShape);

REGISTER_KERNEL_BUILDER(Name("RecsysTrainedMlp").Device(tensorflow::DEVICE_CPU), Mlp)
REGISTER_KERNEL_BUILDER(Name("RecsysTrainMlp").Device(tensorflow::DEVICE_CPU), MlpGradient)
REGISTER_KERNEL_BUILDER(Name("RecsysMlp").Device(tensorflow::DEVICE_CPU), Mlp)
REGISTER_KERNEL_BUILDER(Name("RecsysMlpGradient").Device(tensorflow::DEVICE_CPU), MlpGradient)

}  // namespace
}  // namespace recsys_harness
