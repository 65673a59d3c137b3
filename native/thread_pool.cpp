#include "thread_pool.hpp"

#if defined(_WIN32)
#include <process.h>
#else
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace kernelcg {
namespace {

struct Job {
    WorkerTask task;
    const void* context;
    int workers;
    int begun = 1;    // the next worker's number; the caller is worker 0
    int running = 0;  // threads of the pool at work on it
    std::condition_variable no_longer_running;

    Job(WorkerTask task_, const void* context_, int workers_) : task(task_), context(context_), workers(workers_) {}
};

#if defined(_WIN32)
// There are no signals to block, and no forks: a process keeps its pool.
class SignalsBlocked {
public:
    SignalsBlocked() {}
};

int process_number() { return _getpid(); }
#else
// While it exists, signals go to other threads; a thread started meanwhile never receives any. Python's handlers
// belong to the threads of Python.
class SignalsBlocked {
public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

private:
    sigset_t before_;
};

int process_number() { return int(getpid()); }
#endif

// Never destroyed: its threads wait in it until the process ends.
class Pool {
public:
    int process() const { return process_; }

    int threads() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return threads_;
    }

    void run(int workers, WorkerTask task, const void* context) {
        Job job(task, context, workers);
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            grow_to(workers - 1);
            jobs_.push_back(&job);
        }
        for (int helper = 1; helper < workers; ++helper) job_arrived_.notify_one();
        task(context, 0);
        std::unique_lock<std::mutex> lock(mutex_);
        jobs_.erase(std::find(jobs_.begin(), jobs_.end(), &job));  // from now on nobody begins to work on it
        job.no_longer_running.wait(lock, [&] { return job.running == 0; });
    }

private:
    // Starts threads until there are `wanted`, or as many as the system grants: fewer are slower and nothing else.
    void grow_to(int wanted) {
        if (threads_ >= wanted) return;
        const SignalsBlocked signals_blocked;
        try {
            for (; threads_ < wanted; ++threads_) std::thread([this] { serve(); }).detach();
        } catch (const std::system_error&) {
        }
    }

    Job* oldest_unfilled() {
        for (Job* job : jobs_)
            if (job->begun < job->workers) return job;
        return nullptr;
    }

    [[noreturn]] void serve() {
        std::unique_lock<std::mutex> lock(mutex_);
        while (true) {
            Job* job = nullptr;
            job_arrived_.wait(lock, [&] { return (job = oldest_unfilled()) != nullptr; });
            const int worker = job->begun++;
            ++job->running;
            lock.unlock();
            job->task(job->context, worker);
            lock.lock();
            if (--job->running == 0) job->no_longer_running.notify_one();  // under the lock: the job still exists
        }
    }

    const int process_ = process_number();
    std::mutex mutex_;
    std::condition_variable job_arrived_;
    std::vector<Job*> jobs_;  // of the callers at work, the oldest first
    int threads_ = 0;
};

std::atomic<Pool*> current_pool{nullptr};

// The pool of this process. Its threads do not survive a fork, and its mutex may have been held at that moment: a
// child leaves it alone and makes a new one.
Pool& pool() {
    Pool* found = current_pool.load();
    while (found == nullptr || found->process() != process_number()) {
        Pool* const made = new Pool;
        if (current_pool.compare_exchange_strong(found, made)) return *made;
        delete made;  // another thread was faster
    }
    return *found;
}

}  // namespace

void run_with_help(int workers, WorkerTask task, const void* context) {
    if (workers > 1)
        pool().run(workers, task, context);
    else
        task(context, 0);
}

int threads_started() { return pool().threads(); }

}  // namespace kernelcg
