// Holds the pieces of models/ops/mlp_pieces.h to plain loops, for vectors of as many elements as LANES says: also those
// of processors that this one is not. Prints the largest difference of outputs and gradients.
//
//     g++ -O2 -DLANES=16 -I models/ops tests/models/mlp_pieces_check.cc

#include "mlp_pieces.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

using namespace recsys_harness;
using Values = std::vector<float>;
using Arithmetic = Math<LANES>;

constexpr int64_t kPanel = Arithmetic::kPanel;

Values Drawn(int64_t size) {
  Values values(size);
  for (float& value : values) value = static_cast<float>(std::rand()) / RAND_MAX - 0.5f;
  return values;
}

double largest = 0.0;

void Compare(const Values& ours, const std::vector<double>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(ours[i] - expected[i]);
    if (!(difference <= largest)) largest = difference;  // NaN too
  }
}

std::vector<double> Step(const Values& weights, const std::vector<double>& gradients, double rate) {
  std::vector<double> found(weights.begin(), weights.end());
  for (size_t i = 0; i < found.size(); ++i) found[i] -= rate * gradients[i];
  return found;
}

// One layer whose inputs a layer before it made, in all its pieces.
void Check(int64_t rows, int64_t width, int64_t units, bool linear) {
  const int64_t panels = CeilDiv(rows, kPanel), samples = panels * kPanel;
  Values inputs = Drawn(rows * width);
  for (float& input : inputs) input = std::max(input, 0.0f);
  const Values kernel = Drawn(width * units), bias = Drawn(units), upstream = Drawn(rows * units);
  Values x(samples * width + kTile * kPanel), y(samples * units + kTile * kPanel), y_rows(rows * units);
  Values dy(samples * units + kTile * kPanel), dy_rows(CeilDiv(units, kPanel) * kPanel * samples);
  Values dx(samples * width + kTile * kPanel), dx_rows(CeilDiv(width, kPanel) * kPanel * samples);
  Values kernel_gradient(width * units), bias_gradient(units), input_gradient(rows * width);
  for (int64_t first = 0; first < width; first += kColumns) {
    Arithmetic::Pack(inputs.data(), nullptr, rows, width, first, std::min(first + kColumns, width), x.data(), nullptr);
  }
  Layer layer{kernel.data(), bias.data(), width, units, rows, panels};
  layer.linear = linear;
  layer.x = x.data(), layer.y = y.data(), layer.y_rows = y_rows.data();
  for (int64_t first = 0; first < units; first += kLines) Arithmetic::Forward(layer, first);
  for (int64_t first = 0; first < units; first += kColumns) {
    Arithmetic::Pack(upstream.data(), linear ? nullptr : y_rows.data(), rows, units, first, std::min(first + kColumns, units), dy.data(),
                     dy_rows.data());
  }
  layer.dy = dy.data(), layer.dy_rows = dy_rows.data(), layer.dx = dx.data(), layer.dx_rows = dx_rows.data();
  layer.kernel_gradient = kernel_gradient.data(), layer.bias_gradient = bias_gradient.data();
  const auto of_weights = [&] {
    const int64_t lines = PartSize(width, kTile, 256);
    for (int64_t line = 0; line < width; line += lines) {
      for (int64_t first = 0; first < units; first += kColumns) {
        Arithmetic::KernelGradient(layer, line, std::min(line + lines, width), first);
      }
    }
  };
  of_weights();
  // Once more, and this time a copy of the weights is trained.
  Values trained_kernel = kernel, trained_bias = bias;
  layer.trained_kernel = trained_kernel.data(), layer.trained_bias = trained_bias.data(), layer.rate = 0.5f;
  of_weights();
  for (int64_t first = 0; first < width; first += kLines) Arithmetic::InputGradient(layer, first);
  layer.input_gradient = input_gradient.data();
  for (int64_t first = 0; first < width; first += kLines) Arithmetic::InputGradient(layer, first);

  std::vector<double> outputs(rows * units), of_kernel(width * units), of_bias(units), of_inputs(rows * width);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t unit = 0; unit < units; ++unit) {
      double sum = bias[unit];
      for (int64_t i = 0; i < width; ++i) sum += static_cast<double>(inputs[row * width + i]) * kernel[i * units + unit];
      outputs[row * units + unit] = linear ? sum : std::max(sum, 0.0);
      if (!linear && y_rows[row * units + unit] <= 0.0f) continue;
      const double gradient = upstream[row * units + unit];
      of_bias[unit] += gradient;
      for (int64_t i = 0; i < width; ++i) {
        of_kernel[i * units + unit] += gradient * inputs[row * width + i];
        of_inputs[row * width + i] += gradient * kernel[i * units + unit];
      }
    }
  }
  Compare(y_rows, outputs);
  Compare(kernel_gradient, of_kernel);
  Compare(bias_gradient, of_bias);
  Compare(trained_kernel, Step(kernel, of_kernel, layer.rate));
  Compare(trained_bias, Step(bias, of_bias, layer.rate));
  Compare(input_gradient, of_inputs);
  // In panels: through the ReLU that made the inputs, and in the order of rows as well.
  Values as_rows(rows * width), as_panels(rows * width);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < width; ++i) {
      as_panels[row * width + i] = dx[(row / kPanel * width + i) * kPanel + row % kPanel];
      as_rows[row * width + i] = dx_rows[(i / kPanel * samples + row) * kPanel + i % kPanel];
      if (!(inputs[row * width + i] > 0.0f)) of_inputs[row * width + i] = 0.0;
    }
  }
  Compare(as_panels, of_inputs);
  Compare(as_rows, of_inputs);
}

int main() {
  for (const int64_t rows : {1, 9, 33, 64, 256}) {
    for (const int64_t width : {1, 47, 100, 600}) {
      for (const int64_t units : {1, 48, 130}) {
        for (const bool linear : {false, true}) Check(rows, width, units, linear);
      }
    }
  }
  std::printf("%g\n", largest);
}
