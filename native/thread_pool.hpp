// Threads that live as long as the process and help whoever calls run_with_help.
//
// Nothing here is inline: the header serves every instruction-set variant (see simd.hpp).
#pragma once

namespace kernelcg {

// Called with the context and the number of the worker; must not throw.
using WorkerTask = void (*)(const void* context, int worker);

// Calls task(context, 0) on the calling thread and, as far as threads are free meanwhile, task(context, w) for other
// numbers w < workers, each at most once; returns when all calls that were begun have returned. A thread that is not
// free before the caller has done all the work is not waited for, so the task must take its work from what all workers
// share.
//
// May be called from several threads at once: each caller works on its own job, the threads of the pool on the oldest
// that wants them. There are as many of them as the largest number of workers asked for, less the caller. A forked
// child starts threads of its own.
void run_with_help(int workers, WorkerTask task, const void* context);

// Threads that this process has started so far.
int threads_started();

}  // namespace kernelcg
