// The arithmetic of models/ops/mlp_ops.cc, without TensorFlow: pieces of dense layers with bias, and ReLU but for a last
// layer, on few rows.
//
// Samples lie in panels: (panel, unit, sample of the panel), as many to a panel as two vectors have elements, with
// anything where a panel has more room than the batch has samples; gradients have zeros there.

#ifndef RECSYS_HARNESS_MODELS_OPS_MLP_PIECES_H_
#define RECSYS_HARNESS_MODELS_OPS_MLP_PIECES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "machines.h"

namespace recsys_harness {
namespace {

constexpr int64_t kTile = 6;         // lines of a tile: with two vectors each they leave registers for what is multiplied
constexpr int64_t kLines = 8 * kTile;   // of a piece of work: whole cache lines
constexpr int64_t kShortChunk = 64;  // terms of a sum at a time, where they are copied
constexpr int64_t kLongChunk = 512;  // and where they are not
constexpr int64_t kColumns = 64;     // of a piece of a weight gradient
constexpr int64_t kMostRows = 256;   // of a batch; the sums of a piece are to stay in the second cache

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
  float* trained_kernel, *trained_bias;  // what takes a step against its gradient, in place of the gradients; may be null
  float rate;                            // of that step
  bool linear;                           // no ReLU
};

// The arithmetic, for vectors of L elements.
template <int L>
struct Math {
  typedef float Vector __attribute__((vector_size(4 * L), aligned(4), may_alias));
  static constexpr int64_t kPanel = 2 * L;

  static ALWAYS_INLINE Vector Load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
  static ALWAYS_INLINE void Store(float* to, Vector vector) { *reinterpret_cast<Vector*>(to) = vector; }

  // c (kTile, kPanel) (+)= sum of a[i, p] b[p, :] over p of [0, terms) of each of `outer` blocks; where there is a rate,
  // c -= rate times the sum.
  template <int kStep>
  static ALWAYS_INLINE void Tile(const float* a, int64_t a_line, int64_t a_outer, const float* b, int64_t b_outer,
                                 int64_t outer, int64_t terms, bool add, float* c, int64_t c_line,
                                 const float* rate = nullptr) {
    Vector left[kTile], right[kTile];
#pragma GCC unroll 6
    for (int64_t i = 0; i < kTile; ++i) {
      left[i] = add ? Load(c + i * c_line) : Vector{};
      right[i] = add ? Load(c + i * c_line + L) : Vector{};
      if (rate != nullptr) __builtin_prefetch(c + i * c_line, 1);
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
      Store(c + i * c_line, rate == nullptr ? left[i] : Load(c + i * c_line) - *rate * left[i]);
      Store(c + i * c_line + L, rate == nullptr ? right[i] : Load(c + i * c_line + L) - *rate * right[i]);
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
          // In this order, so that NaN goes on and is seen.
          const Vector rectified = sum <= 0.0f ? Vector{} : sum;
          const Vector value = layer.linear ? sum : rectified;
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
    int64_t end;  // of what falls into one panel of units, which the piece may begin in the middle of
    for (int64_t i = first; i < last; i = end) {
      end = std::min(last, (i / kPanel + 1) * kPanel);
      StoreRows(c + (i - first) * samples, samples, samples, end - i,
                layer.dx_rows + i / kPanel * kPanel * samples + i % kPanel, kPanel);
    }
  }

  // Gradient of the kernel's lines [first_line, last_line) in columns [first, first + kColumns), and of the bias; or the
  // step against it, for which it is not written down: a pass over memory less than gradient and update one by one.
  static ALWAYS_INLINE void KernelGradient(const Layer& layer, int64_t first_line, int64_t last_line, int64_t first) {
    const int64_t width = layer.width, units = layer.units, panels = layer.panels, samples = panels * kPanel;
    const int64_t last = std::min(first + kColumns, units);
    const bool trained = layer.trained_kernel != nullptr;
    for (int64_t line = first_line; line < last_line; line += kTile) {
      const int64_t lines = std::min(kTile, last_line - line);
      for (int64_t column = first; column < last; column += kPanel) {
        const int64_t columns = std::min(kPanel, last - column);
        const float* a = layer.x + line * kPanel;
        const float* b = layer.dy_rows + column / kPanel * samples * kPanel;
        float* to = (trained ? layer.trained_kernel : layer.kernel_gradient) + line * units + column;
        if (lines == kTile && columns == kPanel) {
          if (trained) {
            Tile<1>(a, kPanel, width * kPanel, b, kPanel * kPanel, panels, kPanel, false, to, units, &layer.rate);
          } else {
            Tile<1>(a, kPanel, width * kPanel, b, kPanel * kPanel, panels, kPanel, false, to, units);
          }
          continue;
        }
        alignas(64) float c[kTile * kPanel];
        Tile<1>(a, kPanel, width * kPanel, b, kPanel * kPanel, panels, kPanel, false, c, kPanel);
        for (int64_t i = 0; i < lines; ++i) {
          for (int64_t j = 0; j < columns; ++j) {
            const float gradient = c[i * kPanel + j];
            to[i * units + j] = trained ? to[i * units + j] - layer.rate * gradient : gradient;
          }
        }
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
      if (trained) {
        layer.trained_bias[unit] -= layer.rate * total;
      } else {
        layer.bias_gradient[unit] = total;
      }
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
INSTRUCTIONS(kAvx2, 8, FOR_AVX2);
INSTRUCTIONS(kAvx512, 16, FOR_AVX512);
#endif

const Instructions& Best() {
#if defined(__x86_64__)
  return BestOf(kAny, kAvx2, kAvx512);
#else
  return kAny;
#endif
}

}  // namespace
}  // namespace recsys_harness

#endif  // RECSYS_HARNESS_MODELS_OPS_MLP_PIECES_H_
