#include "worker.h"

#include <chrono>

#include "exit_guard.h"

Worker::Worker() {
  thread_ = std::thread([queue = queue_] {
    std::unique_lock<std::mutex> lock(queue->mutex);
    for (;;) {
      queue->changed.wait(lock, [&] { return queue->stopping || !queue->work.empty(); });
      if (queue->work.empty()) break;
      std::function<void()> work = std::move(queue->work.front());
      queue->work.pop_front();
      queue->busy = true;
      lock.unlock();
      work();
      // What it captured is dropped before the thread counts as idle.
      work = nullptr;
      lock.lock();
      queue->busy = false;
      queue->changed.notify_all();
    }
    queue->ended = true;
    queue->changed.notify_all();
  });
}

Worker::~Worker() {
  std::unique_lock<std::mutex> lock(queue_->mutex);
  queue_->stopping = true;
  queue_->changed.notify_all();
  const bool ended = queue_->changed.wait_for(lock, std::chrono::seconds(2), [&] { return queue_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void Worker::post(std::function<void()> work) {
  std::lock_guard<std::mutex> lock(queue_->mutex);
  // Busy from now on, not from when the thread takes it up: the process may exit in between.
  queue_->work.push_back([busy = std::make_shared<Busy>(), work = std::move(work)] { work(); });
  queue_->changed.notify_all();
}

void Worker::drain() {
  std::unique_lock<std::mutex> lock(queue_->mutex);
  queue_->changed.wait(lock, [&] { return !queue_->busy && queue_->work.empty(); });
}
