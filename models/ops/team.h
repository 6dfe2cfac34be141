// Threads for our kernels, one on each CPU of the process, and work for them in pieces.
//
// TensorFlow's pool wakes a thread anew for each operation and leaves it to Linux on which CPU. Where all CPUs have work,
// the woken thread is often queued behind the one that woke it, and stays there for 2 to 4 ms while another CPU idles
// (a CPU that was idle for less than half a millisecond does not look for work elsewhere): a fifth of a training step of
// DLRM "tiny" on two cores was lost so. Here a thread belongs to a CPU, the one that asks does its part where it is, and
// the others take pieces until there are none, so that nobody waits for a thread that comes late.

#ifndef RECSYS_HARNESS_MODELS_OPS_TEAM_H_
#define RECSYS_HARNESS_MODELS_OPS_TEAM_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

#include "tensorflow/core/framework/op_kernel.h"
#include "tsl/platform/denormal.h"

namespace recsys_harness {

// Pieces of work, in phases of which some wait for others. Pieces are taken in order.
class Work {
 public:
  // Adds a phase that begins when the phase `after` is done (-1: at once); returns its number.
  int Phase(int64_t pieces, int after, std::function<void(int64_t)> work) {
    phases_.push_back({total_, pieces, after, std::move(work)});
    total_ += pieces;
    return static_cast<int>(phases_.size()) - 1;
  }

  int64_t pieces() const { return total_; }

  // No phase is added from here on.
  void Start() { done_ = std::vector<std::atomic<int64_t>>(phases_.size()); }

  // Works on pieces until all are taken.
  void TakePieces() {
    size_t phase = 0;
    for (;;) {
      const int64_t piece = next_.fetch_add(1, std::memory_order_relaxed);
      if (piece >= total_) return;
      while (piece >= phases_[phase].first + phases_[phase].count) ++phase;
      if (phases_[phase].after >= 0) WaitFor(phases_[phase].after);
      phases_[phase].work(piece - phases_[phase].first);
      done_[phase].fetch_add(1, std::memory_order_release);
    }
  }

  void WaitForAll() const {
    for (size_t phase = 0; phase < phases_.size(); ++phase) WaitFor(phase);
  }

 private:
  struct Pieces {
    int64_t first, count;
    int after;
    std::function<void(int64_t)> work;
  };

  // All pieces of the phase have been taken, by threads that are at work on them.
  void WaitFor(size_t phase) const {
    for (int tries = 0; done_[phase].load(std::memory_order_acquire) < phases_[phase].count; ++tries) {
      if (tries > 1000) std::this_thread::yield();
    }
  }

  std::vector<Pieces> phases_;
  std::vector<std::atomic<int64_t>> done_;
  std::atomic<int64_t> next_{0};
  int64_t total_ = 0;
};

// The threads of a process.
class Team {
 public:
  // The only one; begun with the first call, never ended. threads: those of one operation, the caller's included.
  static Team& Get(int threads) {
    static Team* team = new Team(threads);
    return *team;
  }

  // Does the work on the calling thread and up to `helpers` others; returns when it is done.
  void Run(const std::shared_ptr<Work>& work, int64_t helpers) {
    work->Start();
    const int64_t count = static_cast<int64_t>(members_.size());
    const int64_t own = OwnMember();
    for (int64_t i = 0; i < count && helpers > 0; ++i) {
      const int64_t other = (own + 1 + i) % count;
      if (other == own) continue;
      members_[other]->Give(work);
      --helpers;
    }
    work->TakePieces();
    work->WaitForAll();
  }

 private:
  // How long a thread looks for new work before it sleeps: waking it takes about as long.
  static constexpr std::chrono::microseconds kLookout{50};

  class Member {
   public:
    void Give(std::shared_ptr<Work> work) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        given_.push_back(std::move(work));
        has_work_.store(true, std::memory_order_release);
      }
      condition_.notify_one();
    }

    void Loop() {
      tsl::port::ScopedFlushDenormal flush;  // as TensorFlow's threads
      std::vector<std::shared_ptr<Work>> taken;
      for (;;) {
        const auto until = std::chrono::steady_clock::now() + kLookout;
        while (!has_work_.load(std::memory_order_acquire) && std::chrono::steady_clock::now() < until) {
        }
        {
          std::unique_lock<std::mutex> lock(mutex_);
          condition_.wait(lock, [this] { return !given_.empty(); });
          taken.swap(given_);
          has_work_.store(false, std::memory_order_relaxed);
        }
        for (const auto& work : taken) work->TakePieces();
        taken.clear();
      }
    }

   private:
    std::mutex mutex_;
    std::condition_variable condition_;
    std::vector<std::shared_ptr<Work>> given_;
    std::atomic<bool> has_work_{false};
  };

  explicit Team(int threads) {
    const std::vector<int> allowed = AllowedCpus();
    // Not where CPUs are shared with other ranks, whose threads would sit on the same ones.
    if (static_cast<int>(allowed.size()) == threads) cpus_ = allowed;
    const int count = cpus_.empty() ? threads - 1 : threads;
    for (int i = 0; i < count; ++i) members_.push_back(new Member);
    for (int i = 0; i < count; ++i) {
      std::thread thread([this, i] {
        if (!cpus_.empty()) StayOn(cpus_[i]);
        members_[i]->Loop();
      });
      thread.detach();
    }
  }

  // The member that shares the CPU of the calling thread; -1 if there is none.
  int64_t OwnMember() const {
#if defined(__linux__)
    const auto found = std::find(cpus_.begin(), cpus_.end(), sched_getcpu());
    if (found != cpus_.end()) return found - cpus_.begin();
#endif
    return -1;
  }

  static std::vector<int> AllowedCpus() {
    std::vector<int> cpus;
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;  // more CPUs than a cpu_set_t holds
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
#endif
    return cpus;
  }

  static void StayOn(int cpu) {
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);  // where it is not allowed, the thread works wherever it is
#endif
  }

  std::vector<int> cpus_;  // of each member; empty if they may be anywhere
  std::vector<Member*> members_;
};

// Does the work on at most `useful` of the threads that the device gives to one operation.
inline void RunOnTeam(tensorflow::OpKernelContext* context, const std::shared_ptr<Work>& work, int64_t useful) {
  const int threads = context->device()->tensorflow_cpu_worker_threads()->num_threads;
  const int64_t used = std::min({static_cast<int64_t>(threads), useful, work->pieces()});
  if (used <= 1) {
    work->Start();
    work->TakePieces();
    return;
  }
  Team::Get(threads).Run(work, used - 1);
}

// Runs part(first, last) over [0, total), on the threads of the device where that is worth it. cost: of one unit, in
// nanoseconds or so. Parts are multiples of `grain` but for the last; there are more of them than threads, so that one that
// comes late finds some left.
template <typename Part>
void ParallelFor(tensorflow::OpKernelContext* context, int64_t total, int64_t grain, int64_t cost, const Part& part,
                 int64_t parts_of_a_thread = 4) {
  constexpr int64_t kWorthwhile = 20000;  // nanoseconds of a part
  const int64_t threads = context->device()->tensorflow_cpu_worker_threads()->num_threads;
  const int64_t worthwhile = std::max<int64_t>(1, total * std::max<int64_t>(1, cost) / kWorthwhile);
  const int64_t parts = threads == 1 ? 1 : std::min(threads * parts_of_a_thread, worthwhile);
  const int64_t size = std::max<int64_t>(1, ((total + parts - 1) / parts + grain - 1) / grain * grain);
  if (size >= total) {
    if (total > 0) part(int64_t{0}, total);
    return;
  }
  auto work = std::make_shared<Work>();
  work->Phase((total + size - 1) / size, -1, [&](int64_t piece) {
    part(piece * size, std::min(total, (piece + 1) * size));
  });
  RunOnTeam(context, work, parts);
}

}  // namespace recsys_harness

#endif  // RECSYS_HARNESS_MODELS_OPS_TEAM_H_
