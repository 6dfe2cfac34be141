// Lookups in a fused embedding table and their gradients, on CPUs.
//
// TensorFlow's own kernels write every looked-up row to memory before they are pooled, and repeat the gradient of a pool
// for each of its ids before they are added up. Here a row goes from the table into its sum, and a gradient from the
// pool into the rows that it belongs to. models/embedding.py says the same with TensorFlow's kernels, which tests hold
// these to; models/custom_ops.py builds and loads this file.

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "machines.h"
#include "team.h"
#include "variables.h"

namespace recsys_harness {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int kAhead = 16;  // rows fetched ahead of their use: a random row is a miss in every cache

EVERY_MACHINE void AddScaled(float* sum, const float* row, float scale, int64_t dim) {
  for (int64_t i = 0; i < dim; ++i) sum[i] += scale * row[i];
}

EVERY_MACHINE void SubtractScaled(float* row, const float* values, float scale, int64_t dim) {
  for (int64_t i = 0; i < dim; ++i) row[i] -= scale * values[i];
}

void Prefetch(const float* row, int64_t dim) {
  for (int64_t i = 0; i < dim; i += 16) __builtin_prefetch(row + i);
}

// Where the features of a fused table are: in the packed ids and in the table.
class Layout {
 public:
  explicit Layout(OpKernelConstruction* context) {
    OP_REQUIRES_OK(context, context->GetAttr("columns", &columns));
    OP_REQUIRES_OK(context, context->GetAttr("hotness", &hotness));
    OP_REQUIRES_OK(context, context->GetAttr("offsets", &offsets));
    OP_REQUIRES_OK(context, context->GetAttr("first_rows", &first_rows));
    OP_REQUIRES_OK(context, context->GetAttr("row_counts", &rows));
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim));
    OP_REQUIRES_OK(context, context->GetAttr("mean", &mean));
    OP_REQUIRES_OK(context, context->GetAttr("sum_features", &sum_features));
  }

  int64_t features() const { return static_cast<int64_t>(columns.size()); }
  int64_t width() const { return sum_features ? dim : dim * features(); }
  int64_t ids_per_sample() const { return std::accumulate(hotness.begin(), hotness.end(), int64_t{0}); }

  // Of the table, up to the last one that an id can have.
  int64_t table_rows() const {
    int64_t found = 0;
    for (int64_t f = 0; f < features(); ++f) found = std::max(found, offsets[f] + rows[f]);
    return found;
  }

  // Whether the packed ids have a column for each id of a sample.
  Status Check(const Tensor& ids) const {
    int64_t needed = 0;
    for (int64_t f = 0; f < features(); ++f) needed = std::max(needed, columns[f] + hotness[f]);
    if (ids.dims() == 2 && ids.dim_size(1) >= needed) return tensorflow::OkStatus();
    return tensorflow::errors::InvalidArgument("ids must be a matrix of at least ", needed, " columns, got ",
                                               ids.shape().DebugString());
  }

  // The same, and that the gradient is one of their pools, and that 32 bits number the table's rows and the pools.
  Status Check(const Tensor& ids, const Tensor& upstream) const {
    TF_RETURN_IF_ERROR(Check(ids));
    const int64_t samples = ids.dim_size(0);
    if (upstream.dims() != 2 || upstream.dim_size(0) != samples || upstream.dim_size(1) != width()) {
      return tensorflow::errors::InvalidArgument("gradient of shape ", upstream.shape().DebugString(), " for ", samples,
                                                 " rows of width ", width());
    }
    if (table_rows() <= UINT32_MAX && samples * features() <= UINT32_MAX) return tensorflow::OkStatus();
    return tensorflow::errors::InvalidArgument("more than 2^32 rows or pools: ", table_rows(), ", ",
                                               samples * features());
  }

  // Row of the table that an id of a feature has, or -1 if it is absent or another owner's.
  int64_t Position(int64_t feature, int64_t id) const {
    const int64_t row = id - first_rows[feature];
    return id >= 0 && row >= 0 && row < rows[feature] ? row + offsets[feature] : -1;
  }

  // What the rows of a feature's pool count: 1, or for a mean 1 / (ids that are present, here or elsewhere).
  template <typename Tid>
  float Scale(int64_t feature, const Tid* ids) const {
    if (!mean || hotness[feature] == 1) return 1.0f;
    const Tid* first = ids + columns[feature];
    const int64_t present = std::count_if(first, first + hotness[feature], [](Tid id) { return id >= 0; });
    return present > 1 ? 1.0f / static_cast<float>(present) : 1.0f;
  }

  std::vector<int64_t> columns, hotness, offsets, first_rows, rows;
  int64_t dim = 0;
  bool mean = false, sum_features = false;
};

// A sum of rows: where it goes, how many of the rows are its own, and what they count.
struct Pool {
  float* sum;
  int64_t rows;
  float scale;
};

// Adds up the rows of pools, which begin at `found` in the table, pool after pool, and end with kAhead more to fetch.
// Four at a time, for a sum that is read and written with each row costs more than the row.
EVERY_MACHINE void AddPools(const std::vector<Pool>& pools, const int64_t* found, const float* table, int64_t dim) {
  for (int64_t i = 0; i < kAhead; ++i) Prefetch(table + found[i], dim);
  for (const Pool& pool : pools) {
    float* __restrict sum = pool.sum;
    const float scale = pool.scale;
    const int64_t* const end = found + pool.rows;
    for (; end - found >= 4; found += 4) {
      for (int64_t i = 0; i < 4; ++i) Prefetch(table + found[kAhead + i], dim);
      const float *a = table + found[0], *b = table + found[1], *c = table + found[2], *d = table + found[3];
      for (int64_t i = 0; i < dim; ++i) sum[i] += scale * ((a[i] + b[i]) + (c[i] + d[i]));
    }
    for (; found < end; ++found) {
      Prefetch(table + found[kAhead], dim);
      const float* row = table + found[0];
      for (int64_t i = 0; i < dim; ++i) sum[i] += scale * row[i];
    }
  }
}

template <typename Tid>
class PooledLookup : public OpKernel {
 public:
  explicit PooledLookup(OpKernelConstruction* context) : OpKernel(context), layout_(context) {}

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    OP_REQUIRES_OK(context, tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), &variable));
    // Held while rows are read, so that no copy of the table is needed for the time of an update.
    tensorflow::tf_shared_lock lock(*variable->mu());
    const Tensor& table = *variable->tensor();
    const Tensor& ids = context->input(1);
    OP_REQUIRES(context, table.dims() == 2 && table.dim_size(1) == layout_.dim,
                tensorflow::errors::InvalidArgument("table of shape ", table.shape().DebugString(), " for dimension ",
                                                    layout_.dim));
    OP_REQUIRES_OK(context, layout_.Check(ids));
    const int64_t samples = ids.dim_size(0);
    Tensor* pooled = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({samples, layout_.width()}), &pooled));
    const float* rows = table.flat<float>().data();
    const Tid* packed = ids.flat<Tid>().data();
    float* out = pooled->flat<float>().data();
    const int64_t stride = ids.dim_size(1), width = layout_.width(), dim = layout_.dim;
    const int64_t ids_per_sample = layout_.ids_per_sample();
    ParallelFor(context, samples, 1, ids_per_sample * (20 + dim / 2), [&](int64_t first, int64_t last) {
      const int64_t at_once = std::max<int64_t>(1, kIdsAtOnce / ids_per_sample);
      std::vector<int64_t> found(at_once * ids_per_sample + kAhead);
      std::vector<Pool> pools;
      for (; first < last; first += at_once) {
        const int64_t end = std::min(last, first + at_once);
        std::memset(out + first * width, 0, sizeof(float) * (end - first) * width);
        int64_t* next = found.data();
        pools.clear();
        for (int64_t sample = first; sample < end; ++sample) {
          const Tid* own = packed + sample * stride;
          for (int64_t f = 0; f < layout_.features(); ++f) {
            float* sum = out + sample * width + (layout_.sum_features ? 0 : f * dim);
            const int64_t* start = next;
            for (int64_t c = layout_.columns[f]; c < layout_.columns[f] + layout_.hotness[f]; ++c) {
              const int64_t position = layout_.Position(f, own[c]);
              *next = position * dim;
              next += position >= 0;
            }
            pools.push_back({sum, next - start, layout_.Scale(f, own)});
          }
        }
        std::fill_n(next, kAhead, next == found.data() ? 0 : next[-1]);
        AddPools(pools, found.data(), rows, dim);
      }
    });
  }

 private:
  static constexpr int64_t kIdsAtOnce = 3200;  // whose rows are found before they are added up

  Layout layout_;
};

// An id's share in an update: which row, whose gradient, and what it counts.
struct Subtraction {
  uint32_t row;
  uint32_t pool;  // its gradient is the pool-th of `dim` values each
  float scale;
};

// next: what comes after them, so that its first rows are on their way by then.
EVERY_MACHINE void SubtractAll(const std::vector<Subtraction>& all, const std::vector<Subtraction>& next,
                               const float* gradients, float* table, int64_t dim) {
  const int64_t count = static_cast<int64_t>(all.size()), after = static_cast<int64_t>(next.size());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t ahead = i + kAhead;
    if (ahead < count) {
      Prefetch(table + all[ahead].row * dim, dim);
    } else if (ahead < count + after) {
      Prefetch(table + next[ahead - count].row * dim, dim);
    }
    float* row = table + all[i].row * dim;
    const float* gradient = gradients + all[i].pool * dim;
    const float scale = all[i].scale;
    for (int64_t j = 0; j < dim; ++j) row[j] -= scale * gradient[j];
  }
}

// Plain SGD from the gradients of pools, without sums of the gradients of equal rows: nothing is sorted, and no
// gradients are written only to be read again. A thread has rows that no other has, and takes them in the order of the
// batch, so that the result does not depend on the number of threads.
template <typename Tid>
class SubtractPools : public OpKernel {
 public:
  explicit SubtractPools(OpKernelConstruction* context) : OpKernel(context), layout_(context) {}

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    OP_REQUIRES_OK(context, tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), &variable));
    const Tensor& ids = context->input(1);
    const Tensor& upstream = context->input(2);
    OP_REQUIRES_OK(context, layout_.Check(ids, upstream));
    const float rate = context->input(3).scalar<float>()();
    const int64_t samples = ids.dim_size(0), features = layout_.features(), dim = layout_.dim;
    tensorflow::mutex_lock lock(*variable->mu());
    Tensor* table = variable->tensor();
    OP_REQUIRES(context, table->dims() == 2 && table->dim_size(1) == dim && table->dim_size(0) >= layout_.table_rows(),
                tensorflow::errors::InvalidArgument("table of shape ", table->shape().DebugString(), " for ",
                                                    layout_.table_rows(), " rows of dimension ", dim));
    if (samples == 0) return;
    OP_REQUIRES_OK(context, KeepForReaders(context, table));
    float* rows = table->flat<float>().data();
    const float* gradients = upstream.flat<float>().data();
    const Tid* packed = ids.flat<Tid>().data();
    const int64_t stride = ids.dim_size(1), pools = layout_.sum_features ? 1 : features;
    const int64_t parts = std::min<int64_t>(kParts, samples);
    std::vector<std::vector<Subtraction>> found(parts * kParts);  // of each part of the batch for each part of the rows
    auto work = std::make_shared<Work>();
    const int sorted = work->Phase(parts, -1, [&](int64_t part) {
      std::vector<Subtraction>* own = found.data() + part * kParts;
      const int64_t first = part * samples / parts, last = (part + 1) * samples / parts;
      for (int64_t p = 0; p < kParts; ++p) own[p].reserve((last - first) * layout_.ids_per_sample() / kParts * 5 / 4);
      for (int64_t sample = first; sample < last; ++sample) {
        const Tid* looked_up = packed + sample * stride;
        for (int64_t f = 0; f < features; ++f) {
          const float scale = rate * layout_.Scale(f, looked_up);
          const uint32_t pool = static_cast<uint32_t>(sample * pools + (layout_.sum_features ? 0 : f));
          for (int64_t c = layout_.columns[f]; c < layout_.columns[f] + layout_.hotness[f]; ++c) {
            const int64_t position = layout_.Position(f, looked_up[c]);
            if (position >= 0) own[position % kParts].push_back({static_cast<uint32_t>(position), pool, scale});
          }
        }
      }
    });
    work->Phase(kParts, sorted, [&](int64_t of_rows) {
      const std::vector<Subtraction> none;
      const std::vector<Subtraction>& start = found[of_rows];
      for (size_t i = 0; i < std::min<size_t>(kAhead, start.size()); ++i) Prefetch(rows + start[i].row * dim, dim);
      for (int64_t part = 0; part < parts; ++part) {
        const std::vector<Subtraction>& next = part + 1 < parts ? found[(part + 1) * kParts + of_rows] : none;
        SubtractAll(found[part * kParts + of_rows], next, gradients, rows, dim);
      }
    });
    RunOnTeam(context, work, samples * layout_.ids_per_sample() * (20 + dim) / kWorthwhile + 1);
  }

 private:
  static constexpr int64_t kParts = 16;
  static constexpr int64_t kWorthwhile = 20000;  // nanoseconds for which another thread is asked

  Layout layout_;
};

// One id's share in the gradient: which row, and whose gradient (sample * features + feature).
struct Share {
  uint32_t row;
  uint32_t source;
};

// Stable sort by row: byte by byte from the lowest, as many as the rows need.
void SortByRow(std::vector<Share>& shares, uint32_t rows) {
  std::vector<Share> other(shares.size());
  for (int shift = 0; shift < 32 && (rows >> shift) != 0; shift += 11) {
    std::vector<uint32_t> starts(2049, 0);
    for (const Share& share : shares) ++starts[((share.row >> shift) & 2047) + 1];
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
    for (const Share& share : shares) other[starts[(share.row >> shift) & 2047]++] = share;
    shares.swap(other);
  }
}

template <typename Tid>
class RowGradients : public OpKernel {
 public:
  explicit RowGradients(OpKernelConstruction* context) : OpKernel(context), layout_(context) {}

  void Compute(OpKernelContext* context) override {
    const Tensor& ids = context->input(0);
    const Tensor& upstream = context->input(1);
    OP_REQUIRES_OK(context, layout_.Check(ids, upstream));
    const int64_t samples = ids.dim_size(0), features = layout_.features(), dim = layout_.dim;
    const Tid* packed = ids.flat<Tid>().data();
    const int64_t stride = ids.dim_size(1);
    std::vector<float> scales(layout_.mean ? samples * features : 0);
    std::vector<Share> shares;
    shares.reserve(samples * layout_.ids_per_sample());
    for (int64_t sample = 0; sample < samples; ++sample) {
      const Tid* own = packed + sample * stride;
      for (int64_t f = 0; f < features; ++f) {
        const int64_t source = sample * features + f;
        if (layout_.mean) scales[source] = layout_.Scale(f, own);
        for (int64_t c = layout_.columns[f]; c < layout_.columns[f] + layout_.hotness[f]; ++c) {
          const int64_t position = layout_.Position(f, own[c]);
          if (position >= 0) shares.push_back({static_cast<uint32_t>(position), static_cast<uint32_t>(source)});
        }
      }
    }
    SortByRow(shares, static_cast<uint32_t>(layout_.table_rows()));
    std::vector<int64_t> starts;  // of each row's shares, and the end
    for (size_t i = 0; i < shares.size(); ++i) {
      if (i == 0 || shares[i].row != shares[i - 1].row) starts.push_back(static_cast<int64_t>(i));
    }
    const int64_t count = static_cast<int64_t>(starts.size());
    starts.push_back(static_cast<int64_t>(shares.size()));
    Tensor* rows = nullptr;
    Tensor* values = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({count}), &rows));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({count, dim}), &values));
    Tid* out_rows = rows->flat<Tid>().data();
    float* out = values->flat<float>().data();
    const float* gradients = upstream.flat<float>().data();
    const int64_t width = layout_.width();
    ParallelFor(context, count, 1, 20 + dim, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        float* sum = out + i * dim;
        std::memset(sum, 0, sizeof(float) * dim);
        out_rows[i] = static_cast<Tid>(shares[starts[i]].row);
        for (int64_t k = starts[i]; k < starts[i + 1]; ++k) {
          const int64_t source = shares[k].source, sample = source / features, f = source % features;
          const float* gradient = gradients + sample * width + (layout_.sum_features ? 0 : f * dim);
          AddScaled(sum, gradient, layout_.mean ? scales[source] : 1.0f, dim);
        }
      }
    });
  }

 private:
  Layout layout_;
};

template <typename Tid>
class SubtractRows : public OpKernel {
 public:
  explicit SubtractRows(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    OP_REQUIRES_OK(context, tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), &variable));
    const Tensor& rows = context->input(1);
    const Tensor& values = context->input(2);
    const float scale = context->input(3).scalar<float>()();
    tensorflow::mutex_lock lock(*variable->mu());
    Tensor* table = variable->tensor();
    const int64_t dim = table->dim_size(1), count = rows.dim_size(0);
    OP_REQUIRES(context, values.dims() == 2 && values.dim_size(0) == count && values.dim_size(1) == dim,
                tensorflow::errors::InvalidArgument("values of shape ", values.shape().DebugString(), " for ", count,
                                                    " rows of ", dim));
    OP_REQUIRES_OK(context, KeepForReaders(context, table));
    float* target = table->flat<float>().data();
    const Tid* positions = rows.flat<Tid>().data();
    const float* from = values.flat<float>().data();
    const int64_t table_rows = table->dim_size(0);
    for (int64_t i = 0; i < count; ++i) {
      OP_REQUIRES(context, positions[i] >= 0 && positions[i] < table_rows,
                  tensorflow::errors::InvalidArgument("row ", positions[i], " of a table of ", table_rows));
    }
    ParallelFor(context, count, 1, 20 + dim, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        if (i + kAhead < last) Prefetch(target + positions[i + kAhead] * dim, dim);
        SubtractScaled(target + positions[i] * dim, from + i * dim, scale, dim);
      }
    });
  }
};

// Plain SGD of dense variables, all in one pass over memory and one operation: DLRM "tiny" has 9 MB of kernels to update
// in each of its steps of some milliseconds.
class SubtractDense : public OpKernel {
 public:
  explicit SubtractDense(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    tensorflow::OpInputList handles, values;
    OP_REQUIRES_OK(context, context->input_list("variables", &handles));
    OP_REQUIRES_OK(context, context->input_list("values", &values));
    const float scale = context->input(2 * handles.size()).scalar<float>()();
    LockedVariables variables;
    OP_REQUIRES_OK(context, variables.Lock(context, {&handles}));
    for (int i = 0; i < handles.size(); ++i) {
      OP_REQUIRES(context, variables.values(i)->shape() == values[i].shape(),
                  tensorflow::errors::InvalidArgument("values of shape ", values[i].shape().DebugString(),
                                                      " for a variable of shape ",
                                                      variables.values(i)->shape().DebugString()));
    }
    std::vector<Piece> pieces;
    for (int i = 0; i < handles.size(); ++i) {
      Tensor* target = variables.values(i);
      OP_REQUIRES_OK(context, KeepForReaders(context, target));
      for (int64_t start = 0; start < target->NumElements(); start += kPiece) {
        pieces.push_back({target->flat<float>().data() + start, values[i].flat<float>().data() + start,
                          std::min(kPiece, target->NumElements() - start)});
      }
    }
    ParallelFor(context, static_cast<int64_t>(pieces.size()), 1, kPiece / 8, [&](int64_t first, int64_t last) {
      for (; first < last; ++first) {
        SubtractScaled(pieces[first].to, pieces[first].from, scale, pieces[first].size);
      }
    });
  }

 private:
  static constexpr int64_t kPiece = 16 << 10;  // elements

  struct Piece {
    float* to;
    const float* from;
    int64_t size;
  };
};

// A random row of a table of gigabytes misses the TLB as well as the caches, and walking page tables costs as much as
// the row: with pages of 2 MiB, lookups of a batch of DLRM "tiny" take 0.7 of the time.
class UseHugePages : public OpKernel {
 public:
  explicit UseHugePages(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    OP_REQUIRES_OK(context, tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), &variable));
    Tensor* advised = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &advised));
    tensorflow::mutex_lock lock(*variable->mu());
    const uintptr_t start = reinterpret_cast<uintptr_t>(variable->tensor()->data());
    const uintptr_t first = (start + kHugePage - 1) / kHugePage * kHugePage;
    const uintptr_t last = (start + variable->tensor()->TotalBytes()) / kHugePage * kHugePage;
    advised->scalar<bool>()() = last > first && Advise(reinterpret_cast<void*>(first), last - first);
  }

 private:
  static constexpr uintptr_t kHugePage = 2 << 20;

  static bool Advise(void* start, size_t bytes) {
#if defined(__linux__)
    constexpr int kCollapse = 25;  // MADV_COLLAPSE of Linux 6.1, which the headers that TensorFlow is built with lack
    if (madvise(start, bytes, MADV_HUGEPAGE) != 0) return false;
    // The pages have been written to already. An older kernel gathers them in the background instead.
    (void)madvise(start, bytes, kCollapse);
    return true;
#else
    return false;
#endif
  }
};

Status PooledShape(tensorflow::shape_inference::InferenceContext* context) {
  std::vector<int64_t> columns;
  int64_t dim;
  bool sum_features;
  TF_RETURN_IF_ERROR(context->GetAttr("columns", &columns));
  TF_RETURN_IF_ERROR(context->GetAttr("dim", &dim));
  TF_RETURN_IF_ERROR(context->GetAttr("sum_features", &sum_features));
  tensorflow::shape_inference::ShapeHandle ids;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 2, &ids));
  const int64_t width = sum_features ? dim : dim * static_cast<int64_t>(columns.size());
  context->set_output(0, context->Matrix(context->Dim(ids, 0), width));
  return tensorflow::OkStatus();
}

Status RowGradientsShape(tensorflow::shape_inference::InferenceContext* context) {
  int64_t dim;
  TF_RETURN_IF_ERROR(context->GetAttr("dim", &dim));
  const auto count = context->UnknownDim();
  context->set_output(0, context->Vector(count));
  context->set_output(1, context->Matrix(count, dim));
  return tensorflow::OkStatus();
}

#define LAYOUT_ATTRIBUTES                                                                             \
  .Attr("Tid: {int32, int64}")                                                                        \
      .Attr("columns: list(int) >= 1")                                                                \
      .Attr("hotness: list(int) >= 1")                                                                \
      .Attr("offsets: list(int) >= 1")                                                                \
      .Attr("first_rows: list(int) >= 1")                                                             \
      .Attr("row_counts: list(int) >= 1")                                                             \
      .Attr("dim: int")                                                                               \
      .Attr("mean: bool")                                                                             \
      .Attr("sum_features: bool")

// ids (samples, columns) -> (samples, width): sums or means of table rows, as models.embedding.FusedTable.call.
REGISTER_OP("RecsysPooledLookup")
    .Input("table: resource")
    .Input("ids: Tid")
    .Output("pooled: float") LAYOUT_ATTRIBUTES.SetIsStateful()
    .SetShapeFn(PooledShape);

// Distinct rows in rising order, without that of absent ids, and for each the sum of its gradients, added in the order
// of the batch whatever the number of threads; as models.embedding.FusedTable.row_gradients.
REGISTER_OP("RecsysRowGradients")
    .Input("ids: Tid")
    .Input("upstream: float")
    .Output("rows: Tid")
    .Output("values: float") LAYOUT_ATTRIBUTES.SetShapeFn(RowGradientsShape);

// table[rows] -= scale * values, rows distinct, in place.
REGISTER_OP("RecsysSubtractRows")
    .Input("table: resource")
    .Input("rows: Tid")
    .Input("values: float")
    .Input("scale: float")
    .Attr("Tid: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

// variables -= scale * values, of the same shapes, in place.
REGISTER_OP("RecsysSubtractDense")
    .Input("variables: count * resource")
    .Input("values: count * float")
    .Input("scale: float")
    .Attr("count: int >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

// table[row of an id] -= rate * its share in the gradient of its pool, for every id, in place.
REGISTER_OP("RecsysSubtractPools")
    .Input("table: resource")
    .Input("ids: Tid")
    .Input("upstream: float")
    .Input("rate: float") LAYOUT_ATTRIBUTES.SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

// Asks the system for huge pages under the table; false where it has none to give.
REGISTER_OP("RecsysUseHugePages")
    .Input("table: resource")
    .Output("advised: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

REGISTER_KERNEL_BUILDER(Name("RecsysSubtractDense").Device(tensorflow::DEVICE_CPU), SubtractDense)
REGISTER_KERNEL_BUILDER(Name("RecsysUseHugePages").Device(tensorflow::DEVICE_CPU), UseHugePages)

#define REGISTER(TYPE)                                                                                             \
  REGISTER_KERNEL_BUILDER(                                                                                         \
      Name("RecsysPooledLookup").Device(tensorflow::DEVICE_CPU).TypeConstraint<TYPE>("Tid"), PooledLookup<TYPE>)   \
  REGISTER_KERNEL_BUILDER(                                                                                         \
      Name("RecsysRowGradients").Device(tensorflow::DEVICE_CPU).TypeConstraint<TYPE>("Tid"), RowGradients<TYPE>)   \
  REGISTER_KERNEL_BUILDER(                                                                                         \
      Name("RecsysSubtractPools").Device(tensorflow::DEVICE_CPU).TypeConstraint<TYPE>("Tid"), SubtractPools<TYPE>) \
  REGISTER_KERNEL_BUILDER(                                                                                         \
      Name("RecsysSubtractRows").Device(tensorflow::DEVICE_CPU).TypeConstraint<TYPE>("Tid"), SubtractRows<TYPE>)

REGISTER(int32_t);
REGISTER(int64_t);

}  // namespace
}  // namespace recsys_harness
