// Variables that our kernels change in place, on CPUs.

#ifndef RECSYS_HARNESS_MODELS_OPS_VARIABLES_H_
#define RECSYS_HARNESS_MODELS_OPS_VARIABLES_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace recsys_harness {

// Before an update: if somebody still reads the old values, as a variable's reader may expect, they keep them.
inline tensorflow::Status KeepForReaders(tensorflow::OpKernelContext* context, tensorflow::Tensor* values) {
  if (values->RefCountIsOne()) return tensorflow::OkStatus();
  tensorflow::Tensor copy;
  TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_FLOAT, values->shape(), &copy));
  std::memcpy(copy.flat<float>().data(), values->flat<float>().data(), values->TotalBytes());
  *values = copy;
  return tensorflow::OkStatus();
}

// Several variables, locked for one operation.
class LockedVariables {
 public:
  // Locks the variables of the handles, all or none of them.
  tensorflow::Status Lock(tensorflow::OpKernelContext* context,
                          const std::vector<const tensorflow::OpInputList*>& lists) {
    std::vector<tensorflow::Var*> in_order;
    for (const tensorflow::OpInputList* list : lists) {
      for (int i = 0; i < list->size(); ++i) {
        variables_.emplace_back();
        TF_RETURN_IF_ERROR(tensorflow::LookupResource(
            context, (*list)[i].scalar<tensorflow::ResourceHandle>()(), &variables_.back()));
        in_order.push_back(variables_.back().get());
      }
    }
    // By address, so that two operations never wait for each other.
    std::sort(in_order.begin(), in_order.end());
    if (std::adjacent_find(in_order.begin(), in_order.end()) != in_order.end()) {
      return tensorflow::errors::InvalidArgument("a variable is named twice");
    }
    for (tensorflow::Var* variable : in_order) {
      locks_.push_back(std::make_unique<tensorflow::mutex_lock>(*variable->mu()));
    }
    return tensorflow::OkStatus();
  }

  // The values of a variable, by its place in the lists.
  tensorflow::Tensor* values(int64_t i) { return variables_[i]->tensor(); }

 private:
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;
  std::vector<std::unique_ptr<tensorflow::mutex_lock>> locks_;  // given back before the variables
};

}  // namespace recsys_harness

#endif  // RECSYS_HARNESS_MODELS_OPS_VARIABLES_H_
