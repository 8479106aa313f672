#include "parallel/comm/nccl/nccl_work.h"

#include <utility>

namespace pptrain::comm {

NcclEvent record(c10::cuda::CUDAStream stream) {
  auto event = std::make_shared<at::cuda::CUDAEvent>();
  event->record(stream);
  return event;
}

NcclWork::NcclWork(WatchdogPtr watchdog, c10::cuda::CUDAStream home, NcclEvent finished,
                   DeviceWatch::Ticket ticket, std::vector<at::Tensor> tensors)
    : watchdog_(std::move(watchdog)),
      home_(home),
      finished_(std::move(finished)),
      ticket_(std::move(ticket)),
      tensors_(std::move(tensors)) {}

NcclWork::~NcclWork() {
  leave_tensors_to_watch();
}

bool NcclWork::done() {
  watchdog_->watch().check();
  if (!finished_->query()) return false;
  tensors_.clear();
  return true;
}

void NcclWork::wait(const std::function<std::string()>& what) {
  watchdog_->watch().check();
  const auto current = c10::cuda::getCurrentCUDAStream(finished_->device_index());
  finished_->block(current);
  if (what) watchdog_->watch().explain(ticket_, what());
  if (current == home_) {
    tensors_.clear();
  } else {
    leave_tensors_to_watch();
  }
}

void NcclWork::leave_tensors_to_watch() {
  if (!tensors_.empty()) watchdog_->watch().keep(ticket_, std::move(tensors_));
  tensors_.clear();
}

}  // namespace pptrain::comm
