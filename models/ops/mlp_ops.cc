// Dense layers with bias and ReLU, one after the other, on few rows, in float32, on CPUs: forward and backward.
//
// At batches of 64 the products of a library reach 125 of 197 GFLOP/s (two cores of a Zen 3): each wakes the second
// thread anew, which costs as much as a quarter of the product, and copies the weights into an order of its own for
// rows that are not there. Here all layers are one operation whose threads are woken once and take pieces of work as
// they come, and the rows of a batch lie side by side in a vector, so that weights are read once, mostly where they lie.
//
// Samples lie in panels: (panel, unit, sample of the panel), as many to a panel as two vectors have elements, with
// anything where a panel has more room than the batch has samples; gradients have zeros there.
//
// models/layers.py has the layer and says when it is used; tests hold it to TensorFlow's kernels and to numpy.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "team.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace recsys_harness {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpInputList;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int64_t kTile = 6;         // lines of a tile: with two vectors each they leave registers for what is multiplied
constexpr int64_t kLines = 8 * kTile;   // of a piece of work: whole cache lines
constexpr int64_t kShortChunk = 64;  // terms of a sum at a time, where they are copied
constexpr int64_t kLongChunk = 512;  // and where they are not
constexpr int64_t kColumns = 64;     // of a piece of a weight gradient
constexpr int64_t kMostRows = 256;   // of a batch; the sums of a piece are to stay in the second cache
constexpr int64_t kWorkOfAThread = 1 << 19;  // multiply-adds that are worth waking a thread

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Equal parts of `total`, each a multiple of `grain` but the last, near `wanted` in size.
int64_t PartSize(int64_t total, int64_t grain, int64_t wanted) {
  const int64_t parts = std::max<int64_t>(1, (total + wanted / 2) / wanted);
  return CeilDiv(CeilDiv(total, parts), grain) * grain;
}

// One layer: width -> units. Panels unless it says rows.
struct Layer {
  const float* kernel;  // (width, units)
  const float* bias;    // (units,)
  int64_t width, units;
  int64_t rows, panels;
  const float* x;       // inputs
  float* y;             // outputs, may be null
  float* y_rows;        // outputs as rows (rows, units), may be null
  const float* dy;      // gradient of the outputs before ReLU
  const float* dy_rows;   // the same as (panel of units, sample, unit of the panel)
  float* dx;            // gradient of the inputs, through the ReLU that made them: of the layer before; may be null
  float* dx_rows;       // the same in the order of dy_rows, may be null
  float* input_gradient;  // gradient of the inputs as rows, where nothing made them; may be null
  float* kernel_gradient, *bias_gradient;
};

// The arithmetic, for vectors of L elements.
template <int L>
struct Math {
  typedef float Vector __attribute__((vector_size(4 * L), aligned(4), may_alias));
  static constexpr int64_t kPanel = 2 * L;

  static ALWAYS_INLINE Vector Load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
  static ALWAYS_INLINE void Store(float* to, Vector vector) { *reinterpret_cast<Vector*>(to) = vector; }

  // c (kTile, kPanel) (+)= sum of a[i, p] b[p, :] over p of [0, terms) of each of `outer` blocks.
  template <int kStep>
  static ALWAYS_INLINE void Tile(const float* a, int64_t a_line, int64_t a_outer, const float* b, int64_t b_outer,
                                 int64_t outer, int64_t terms, bool add, float* c, int64_t c_line) {
    Vector left[kTile], right[kTile];
#pragma GCC unroll 6
    for (int64_t i = 0; i < kTile; ++i) {
      left[i] = add ? Load(c + i * c_line) : Vector{};
      right[i] = add ? Load(c + i * c_line + L) : Vector{};
    }
    for (int64_t o = 0; o < outer; ++o, a += a_outer, b += b_outer) {
      const float *at = a, *bt = b;
      for (int64_t p = 0; p < terms; ++p, at += kStep, bt += kPanel) {
        const Vector b0 = Load(bt), b1 = Load(bt + L);
#pragma GCC unroll 6
        for (int64_t i = 0; i < kTile; ++i) {
          const Vector ai = at[i * a_line] - Vector{};
          left[i] += ai * b0;
          right[i] += ai * b1;
        }
      }
    }
#pragma GCC unroll 6
    for (int64_t i = 0; i < kTile; ++i) {
      Store(c + i * c_line, left[i]);
      Store(c + i * c_line + L, right[i]);
    }
  }

  // Columns [first, last) of rows into panels. Where `gate` is given, only what has a positive value there.
  static ALWAYS_INLINE void Pack(const float* from, const float* gate, int64_t rows, int64_t width, int64_t first,
                                 int64_t last, float* to, float* to_rows) {
    const int64_t samples = CeilDiv(rows, kPanel) * kPanel;
    float block[kPanel][kPanel];
    for (int64_t start = 0; start < samples; start += kPanel) {
      for (int64_t column = first; column < last; column += kPanel) {
        const int64_t columns = std::min(kPanel, last - column);
        for (int64_t row = 0; row < kPanel; ++row) {
          const int64_t at = (start + row) * width + column;
          if (start + row >= rows) {
            std::memset(block[row], 0, sizeof block[row]);
          } else {
            std::copy_n(from + at, columns, block[row]);
            if (gate != nullptr) {
              float gates[kPanel];
              std::copy_n(gate + at, columns, gates);
              for (int64_t j = 0; j < kPanel; j += L) {
                Store(block[row] + j, Load(gates + j) > 0.0f ? Load(block[row] + j) : Vector{});
              }
            }
          }
          if (to_rows != nullptr) {
            std::copy_n(block[row], columns, to_rows + (column / kPanel * samples + start + row) * kPanel);
          }
        }
        float* panel = to + (start * width + column * kPanel);
        for (int64_t j = 0; j < columns; ++j) {
          for (int64_t row = 0; row < kPanel; ++row) panel[j * kPanel + row] = block[row][j];
        }
      }
    }
  }

  // Lines of sums (lines, samples) as rows: to[row * width + line].
  static ALWAYS_INLINE void StoreRows(const float* sums, int64_t samples, int64_t rows, int64_t lines, float* to,
                                      int64_t width) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < lines; ++i) to[row * width + i] = sums[i * samples + row];
    }
  }

  // Outputs of units [first, first + kLines).
  static ALWAYS_INLINE void Forward(const Layer& layer, int64_t first) {
    const int64_t width = layer.width, units = layer.units, panels = layer.panels, samples = panels * kPanel;
    const int64_t last = std::min(first + kLines, units), tiles = CeilDiv(last - first, kTile);
    alignas(64) float a[kShortChunk * kLines];
    alignas(64) float c[kLines * kMostRows];
    for (int64_t start = 0; start < width; start += kShortChunk) {
      const int64_t terms = std::min(kShortChunk, width - start);
      // Copied, for lines that are a power of two apart share a few places of the caches, and each is read once a panel.
      for (int64_t p = 0; p < terms; ++p) {
        const float* from = layer.kernel + (start + p) * units + first;
        if (last - first == kLines) {
          std::memcpy(a + p * kLines, from, sizeof(float) * kLines);
        } else {
          for (int64_t i = 0; i < tiles * kTile; ++i) a[p * kLines + i] = first + i < last ? from[i] : 0.0f;
        }
      }
      // What comes next is fetched while this is worked on, a few lines with each tile.
      int64_t ahead = start + terms;
      const int64_t at_once = CeilDiv(kShortChunk, panels * tiles);
      for (int64_t panel = 0; panel < panels; ++panel) {
        const float* b = layer.x + (panel * width + start) * kPanel;
        for (int64_t t = 0; t < tiles; ++t) {
          for (const int64_t end = std::min(width, ahead + at_once); ahead < end; ++ahead) {
            const float* next = layer.kernel + ahead * units + first;
            for (int64_t i = 0; i < kLines; i += 16) __builtin_prefetch(next + i);
          }
          Tile<kLines>(a + t * kTile, 1, 0, b, 0, 1, terms, start > 0, c + t * kTile * samples + panel * kPanel,
                       samples);
        }
      }
    }
    for (int64_t unit = first; unit < last; ++unit) {
      float* sums = c + (unit - first) * samples;
      const float bias = layer.bias[unit];
      for (int64_t panel = 0; panel < panels; ++panel) {
        float* values = sums + panel * kPanel;
        for (int64_t j = 0; j < kPanel; j += L) {
          const Vector sum = Load(values + j) + bias;
          const Vector value = sum <= 0.0f ? Vector{} : sum;  // in this order, so that NaN goes on and is seen
          Store(values + j, value);
          if (layer.y != nullptr) Store(layer.y + (panel * units + unit) * kPanel + j, value);
        }
      }
    }
    if (layer.y_rows != nullptr) StoreRows(c, samples, layer.rows, last - first, layer.y_rows + first, units);
  }

  // Gradient of inputs [first, first + kLines).
  static ALWAYS_INLINE void InputGradient(const Layer& layer, int64_t first) {
    const int64_t width = layer.width, units = layer.units, panels = layer.panels, samples = panels * kPanel;
    const int64_t last = std::min(first + kLines, width);
    alignas(64) float edge[kTile * kLongChunk];
    alignas(64) float c[kLines * kMostRows];
    for (int64_t start = 0; start < units; start += kLongChunk) {
      const int64_t terms = std::min(kLongChunk, units - start);
      for (int64_t line = first; line < last; line += kTile) {
        const float* a = layer.kernel + line * units + start;
        int64_t a_line = units;
        if (last - line < kTile) {
          std::fill_n(edge, kTile * kLongChunk, 0.0f);
          for (int64_t i = 0; i < last - line; ++i) std::copy_n(a + i * units, terms, edge + i * kLongChunk);
          a = edge, a_line = kLongChunk;
        }
        for (int64_t panel = 0; panel < panels; ++panel) {
          Tile<1>(a, a_line, 0, layer.dy + (panel * units + start) * kPanel, 0, 1, terms, start > 0,
                  c + (line - first) * samples + panel * kPanel, samples);
        }
      }
    }
    if (layer.input_gradient != nullptr) {
      StoreRows(c, samples, layer.rows, last - first, layer.input_gradient + first, width);
      return;
    }
    for (int64_t i = first; i < last; ++i) {
      for (int64_t panel = 0; panel < panels; ++panel) {
        const float* outputs = layer.x + (panel * width + i) * kPanel;
        float* values = c + (i - first) * samples + panel * kPanel;
        float* to = layer.dx + (panel * width + i) * kPanel;
        for (int64_t j = 0; j < kPanel; j += L) {
          const Vector value = Load(outputs + j) > 0.0f ? Load(values + j) : Vector{};
          Store(values + j, value);
          Store(to + j, value);
        }
      }
    }
    for (int64_t i = first; i < last; i += kPanel) {
      StoreRows(c + (i - first) * samples, samples, samples, std::min(kPanel, last - i),
                layer.dx_rows + i * samples, kPanel);
    }
  }

  // Gradient of the kernel's lines [first_line, last_line) in columns [first, first + kColumns), and of the bias.
  static ALWAYS_INLINE void KernelGradient(const Layer& layer, int64_t first_line, int64_t last_line, int64_t first) {
    const int64_t width = layer.width, units = layer.units, panels = layer.panels, samples = panels * kPanel;
    const int64_t last = std::min(first + kColumns, units);
    for (int64_t line = first_line; line < last_line; line += kTile) {
      const int64_t lines = std::min(kTile, last_line - line);
      for (int64_t column = first; column < last; column += kPanel) {
        const int64_t columns = std::min(kPanel, last - column);
        const float* a = layer.x + line * kPanel;
        const float* b = layer.dy_rows + column / kPanel * samples * kPanel;
        float* to = layer.kernel_gradient + line * units + column;
        if (lines == kTile && columns == kPanel) {
          Tile<1>(a, kPanel, width * kPanel, b, kPanel * kPanel, panels, kPanel, false, to, units);
          continue;
        }
        alignas(64) float c[kTile * kPanel];
        Tile<1>(a, kPanel, width * kPanel, b, kPanel * kPanel, panels, kPanel, false, c, kPanel);
        for (int64_t i = 0; i < lines; ++i) std::memcpy(to + i * units, c + i * kPanel, sizeof(float) * columns);
      }
    }
    if (first_line > 0) return;
    for (int64_t unit = first; unit < last; ++unit) {
      Vector sum = {};
      for (int64_t panel = 0; panel < panels; ++panel) {
        const float* from = layer.dy + (panel * units + unit) * kPanel;
        sum += Load(from) + Load(from + L);
      }
      float parts[L], total = 0.0f;
      Store(parts, sum);
      for (const float part : parts) total += part;
      layer.bias_gradient[unit] = total;
    }
  }
};

// The same for the instruction sets of more than one machine.
struct Instructions {
  int64_t panel;  // samples of a panel
  void (*pack)(const float* from, const float* gate, int64_t rows, int64_t width, int64_t first, int64_t last,
               float* to, float* to_rows);
  void (*forward)(const Layer& layer, int64_t first);
  void (*input_gradient)(const Layer& layer, int64_t first);
  void (*kernel_gradient)(const Layer& layer, int64_t first_line, int64_t last_line, int64_t first);
};

#define INSTRUCTIONS(NAME, L, TARGET)                                                                                 \
  TARGET void NAME##Pack(const float* from, const float* gate, int64_t rows, int64_t width, int64_t first,            \
                         int64_t last, float* to, float* to_rows) {                                                   \
    Math<L>::Pack(from, gate, rows, width, first, last, to, to_rows);                                                 \
  }                                                                                                                   \
  TARGET void NAME##Forward(const Layer& layer, int64_t first) { Math<L>::Forward(layer, first); }                    \
  TARGET void NAME##InputGradient(const Layer& layer, int64_t first) { Math<L>::InputGradient(layer, first); }        \
  TARGET void NAME##KernelGradient(const Layer& layer, int64_t first_line, int64_t last_line, int64_t first) {        \
    Math<L>::KernelGradient(layer, first_line, last_line, first);                                                     \
  }                                                                                                                   \
  constexpr Instructions NAME = {Math<L>::kPanel, NAME##Pack, NAME##Forward, NAME##InputGradient, NAME##KernelGradient}

INSTRUCTIONS(kAny, 4, );
#if defined(__x86_64__)
INSTRUCTIONS(kAvx2, 8, __attribute__((target("avx2,fma"))));
INSTRUCTIONS(kAvx512, 16, __attribute__((target("avx512f,avx2,fma"))));
#endif

const Instructions& Best() {
#if defined(__x86_64__)
  static const Instructions& best = __builtin_cpu_supports("avx512f") ? kAvx512
                                    : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? kAvx2
                                                                                                       : kAny;
  return best;
#else
  return kAny;
#endif
}

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
