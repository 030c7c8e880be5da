/* libflux: bundles of compiled kernels for C, and whatever calls C. docs/interop.md tells how to use it.

   Made from the sources of flux-c by `FLUX_BLESS=1 cargo test -p flux-c --test header`: change those.

   Every function but flux_last_error, flux_abi and flux_version returns a status: FLUX_OK, or what
   flux_last_error tells in words on the same thread. Results are written where that is FLUX_OK. Text
   is UTF-8 and ends with a zero. A pointer is NULL, which is an error where nothing else is said, or
   points to what is asked for there: nobody can tell what other addresses are. Any function may be
   called on any thread; those that concern all ranks of a world wait for its other processes. */

#ifndef FLUX_H
#define FLUX_H

#include <stddef.h>
#include <stdint.h>

// Done.
#define FLUX_OK 0

// An argument that is wrong: null, a handle of something else, a shape that does not fit, ranks that
// are not about to do the same. Nothing has run.
#define FLUX_INVALID 1

// No driver, no such device, or one that kernels do not run on.
#define FLUX_UNAVAILABLE 2

// A launch gave up, or rests on one that did: its outputs are not to be used. Every rank recovers
// (flux_recover) before it launches again.
#define FLUX_STALLED 3

// Anything else: a call of the driver, memory that ran out, a rank that did not come.
#define FLUX_FAILED 4

// A fault of this library.
#define FLUX_PANIC 5

// Counts changes that programs compiled for an earlier header do not survive.
#define FLUX_ABI 1

// In place of a stream: the stream that each rank has of its own.
#define FLUX_OWN_STREAM 18446744073709551615ull

// Each rank has its own tensor.
#define FLUX_GLOBAL 0

// Each rank passes its shard of the rows, and all of them are read.
#define FLUX_GATHERED 1

// Each rank passes its shard of the rows.
#define FLUX_SHARDED 2

// Every rank adds to all rows, and gets its shard of the sum.
#define FLUX_SCATTERED 3

// Every rank adds to all rows, and gets the sum.
#define FLUX_REDUCED 4

// Each rank passes all rows of its shard of the columns.
#define FLUX_EXCHANGED 5

// A number, not a tensor.
#define FLUX_SCALAR 0

// 1 sign, 8 exponent, 7 fraction bits.
#define FLUX_BF16 1

// IEEE half precision.
#define FLUX_F16 2

// IEEE single precision.
#define FLUX_F32 3

// In place of the number of a device: memory of the host.
#define FLUX_HOST -1

// Something that was opened. Numbers are never given twice; 0 is none.
typedef uint64_t flux_handle;

// What the ranks of a world are.
typedef struct {
  // Ranks of the world.
  uint32_t world;
  // The first rank of this process.
  uint32_t first;
  // Ranks of this process, numbered on from the first.
  uint32_t count;
} flux_ranks;

// A parameter of a kernel.
typedef struct {
  // The name that it has in the source; valid as long as the bundle is open.
  const char *name;
  // FLUX_BF16, FLUX_F16 or FLUX_F32; FLUX_SCALAR for a number.
  int32_t dtype;
  // FLUX_GLOBAL and so on: how the tensor lies over the ranks. 0 for a number.
  int32_t distribution;
  // 1 for an output.
  int32_t written;
} flux_parameter;

// An argument of a launch: a row-major matrix without gaps between rows, or a number. A vector has one
// row or one column.
typedef struct {
  // The first element, on the host or on a device; NULL for a number, and where there is no element.
  void *data;
  // Rows: those that this rank passes.
  uint64_t rows;
  // Columns.
  uint64_t cols;
  // FLUX_BF16, FLUX_F16, FLUX_F32 or FLUX_SCALAR.
  int32_t dtype;
  // The number of the device that the memory is of, or FLUX_HOST.
  int32_t device;
  // The number, where it is one.
  float value;
  // 0.
  uint32_t reserved;
} flux_argument;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What the last call on this thread failed with, in words; empty where it succeeded. Valid until the
// next call on this thread.
const char *flux_last_error(void);

// The version of the functions in this header: FLUX_ABI where it was compiled for this library.
uint32_t flux_abi(void);

// The version of the library, as "0.1.0". Bundles are of one version.
const char *flux_version(void);

// Closes a world, a bundle, a kernel or a symmetric tensor. A world ends with the last kernel and
// symmetric tensor of it; where ranks are processes, rank 0's then waits for the others to end, for as
// long as a wait may take.
int32_t flux_close(flux_handle handle);

// Opens a world: "host:4" for four ranks on threads of the host, "gpu:4" for four that share the first
// GPU, "devices:0,1" for a rank on each of these GPUs, "env" for the rank that a launcher (torchrun,
// mpirun, srun, flux launch) made of this process. No wait takes longer than limit_ms, 0 for 10 seconds.
int32_t flux_world_open(const char *name,
                        uint64_t limit_ms,
                        flux_handle *world);

// The ranks of a world.
int32_t flux_world_ranks(flux_handle world, flux_ranks *ranks);

// The number of the device that a rank of this process computes on, FLUX_HOST for the host.
int32_t flux_rank_device(flux_handle world, uint32_t rank, int32_t *device);

// The rows that a rank of the world owns of so many in all: ceil(rows / ranks), fewer (or none) on the last
// ones.
int32_t flux_own_rows(flux_handle world,
                      uint32_t rank,
                      uint64_t rows,
                      uint64_t *own);

// Waits for what the ranks of this process have launched, on whatever stream. FLUX_STALLED where a
// launch gave up.
int32_t flux_synchronize(flux_handle world);

// As flux_synchronize, of one rank.
int32_t flux_synchronize_rank(flux_handle world, uint32_t rank);

// Makes a world usable again after launches have failed: every rank of it, also those of other
// processes, recovers. Kernels stay loaded; outputs of failed launches are not to be used.
int32_t flux_recover(flux_handle world);

// As flux_recover, of one rank: each recovers on a thread of its own.
int32_t flux_recover_rank(flux_handle world, uint32_t rank);

// Opens a file that `flux build --bundle` wrote.
int32_t flux_bundle_open(const char *path, flux_handle *bundle);

// The same from memory, which is not needed afterwards.
int32_t flux_bundle_read(const uint8_t *bytes, size_t count, flux_handle *bundle);

// The name of the kernel of a bundle, valid as long as that is open.
int32_t flux_bundle_name(flux_handle bundle, const char **name);

// The number of parameters: of arguments that a rank passes.
int32_t flux_bundle_parameters(flux_handle bundle, size_t *count);

// The parameter numbered index, from 0.
int32_t flux_bundle_parameter(flux_handle bundle, size_t index, flux_parameter *parameter);

// The number of schedules that a bundle has machine code for.
int32_t flux_bundle_schedules(flux_handle bundle, size_t *count);

// The schedule numbered index, from 0, in words that flux_kernel_load takes; valid as long as the
// bundle is open.
int32_t flux_bundle_schedule(flux_handle bundle, size_t index, const char **schedule);

// Loads the kernel of a bundle on every rank of this process: lowers it, checks it, and on GPUs takes
// the machine code that belongs to it. Processes load the same kernels in the same order. schedule is
// NULL for all schedules of the bundle, of which the fitting one is chosen, or one of them in words.
int32_t flux_kernel_load(flux_handle world,
                         flux_handle bundle,
                         const char *schedule,
                         flux_handle *kernel);

// Launches a kernel on every rank of this process. Arguments stand rank behind rank: those of the first
// rank in the order of its parameters, then those of the next.
//
// On the host the launch is done when this returns. On GPUs it is enqueued: behind what is on stream,
// and what is enqueued on stream later comes behind it. stream is a CUstream or cudaStream_t of the
// device of this process's first rank, as a number (0 is the default stream), and lives as long as the
// world; FLUX_OWN_STREAM is the stream that each rank has of its own, and orders nothing else. On the
// host it says nothing.
//
// rows is NULL where ranks own shards as flux_own_rows has them. A kernel of own rows (FLUX_EXCHANGED beside
// FLUX_SHARDED) may be launched over ranks of other numbers: then rows has one for each rank of the world,
// the same on all of them.
//
// Outputs share no memory with any other argument. Memory stays as it is until the launch has ended;
// what is read may be read by others meanwhile. Rows that are multiplied should begin at multiples of
// 16 bytes, and a tensor has to.
int32_t flux_launch(flux_handle kernel,
                    const flux_argument *arguments,
                    size_t count,
                    const uint64_t *rows,
                    uint64_t stream);

// Launches a kernel on one rank, from a thread of that rank's own: launches of new shapes wait for those
// of the other ranks. Ranks that share a GPU take streams of their own, as their kernels run at once.
// All else is as of flux_launch, of which stream is of this rank's device.
int32_t flux_launch_rank(flux_handle kernel,
                         uint32_t rank,
                         const flux_argument *arguments,
                         size_t count,
                         const uint64_t *rows,
                         uint64_t stream);

// Describes a DLPack tensor as an argument: its memory, no copy. It stays the caller's, who keeps it until
// launches with it have ended. managed is a DLManagedTensorVersioned where versioned is 1, a
// DLManagedTensor where it is 0; written is 1 for an output, which a tensor that must not be written
// cannot be.
int32_t flux_argument_of_dlpack(void *managed,
                                int32_t versioned,
                                int32_t written,
                                flux_argument *argument);

// Makes a matrix of zeros on every rank of a world on GPUs, whose memory all ranks reach: kernels of
// one's own can store into those of peers. dtype is FLUX_BF16, FLUX_F16 or FLUX_F32. Processes make the
// same ones, in the same order as they load kernels. The memory lives until the tensor and every DLPack
// tensor of it are gone.
int32_t flux_symmetric_open(flux_handle world,
                            uint64_t rows,
                            uint64_t cols,
                            int32_t dtype,
                            flux_handle *symmetric);

// The address of the matrix of rank of, as the device of rank, which is of this process, reaches it.
int32_t flux_symmetric_data(flux_handle symmetric,
                            uint32_t rank,
                            uint32_t of,
                            void **data);

// The same as a DLPack tensor: a DLManagedTensorVersioned where versioned is 1, a DLManagedTensor where
// it is 0. It is the caller's, who calls its deleter or hands it to somebody who does.
int32_t flux_symmetric_dlpack(flux_handle symmetric,
                              uint32_t rank,
                              uint32_t of,
                              int32_t versioned,
                              void **managed);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FLUX_H */
