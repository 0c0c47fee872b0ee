// The one thread of a device: work runs in the order it was posted, so the driver sees calls in the order of
// JavaScript.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

class Worker {
 public:
  Worker();
  // Lets the thread do what was posted and end, and waits a moment for it; one that hangs in the driver is left behind.
  ~Worker();
  void post(std::function<void()> work);
  // Blocks until all that was posted has run.
  void drain();

 private:
  // Shared with the thread, which may outlive the object.
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> work;
    bool busy = false;
    bool stopping = false;
    bool ended = false;
  };
  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
  std::thread thread_;
};
