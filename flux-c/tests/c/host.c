/* Kernels on ranks of the host, from C: results are compared exactly, mistakes are told. */

#include "flux.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, M = 24, N = 20, K = 16 };

static int failures = 0;

static void check(int holds, const char *what, int line) {
  if (!holds) {
    printf("line %d: %s; last error: %s\n", line, what, flux_last_error());
    failures += 1;
  }
}

#define CHECK(condition) check((condition) != 0, #condition, __LINE__)
#define DONE(call) check((call) == FLUX_OK, #call, __LINE__)

/* The status, and words of the sentence that tells it. */
static void told(int32_t found, int32_t status, const char *words, int line) {
  if (found != status || strstr(flux_last_error(), words) == NULL) {
    printf("line %d: status %d (%s), expected %d (…%s…)\n", line, (int)found, flux_last_error(),
           (int)status, words);
    failures += 1;
  }
}

#define TOLD(call, status, words) told((call), (status), (words), __LINE__)

static uint16_t bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return (uint16_t)(bits >> 16); /* small integers have no more bits */
}

static float from_bf16(uint16_t value) {
  uint32_t bits = (uint32_t)value << 16;
  float wide;
  memcpy(&wide, &bits, 4);
  return wide;
}

/* Small integers: every sum of their products is one that bf16 holds exactly. */
static float entry(uint32_t seed, uint32_t row, uint32_t col) {
  return (float)((seed + 3 * row + 5 * col) % 3) - 1.0f;
}

static flux_argument matrix(void *data, uint64_t rows, uint64_t cols) {
  flux_argument argument;
  memset(&argument, 0, sizeof argument);
  argument.data = data;
  argument.rows = rows;
  argument.cols = cols;
  argument.dtype = FLUX_BF16;
  argument.device = FLUX_HOST;
  return argument;
}

/* C = reduce_scatter(A · Bᵀ): each rank has all rows of its part of the sum, and keeps its rows of C. */
typedef struct {
  uint16_t a[RANKS][M * K], b[RANKS][N * K], c[RANKS][M / RANKS * N];
} problem;

static void fill(problem *it, uint32_t seed) {
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    for (uint32_t i = 0; i < M * K; i++) it->a[rank][i] = bf16(entry(seed + rank, i / K, i % K));
    for (uint32_t i = 0; i < N * K; i++) it->b[rank][i] = bf16(entry(seed + 7 * rank, i / K, i % K));
    memset(it->c[rank], 0xff, sizeof it->c[rank]);
  }
}

static void arguments_of(problem *it, uint32_t rank, flux_argument *arguments) {
  arguments[0] = matrix(it->a[rank], M, K);
  arguments[1] = matrix(it->b[rank], N, K);
  arguments[2] = matrix(it->c[rank], M / RANKS, N);
}

/* Elements that differ from the plain product. */
static int differences(const problem *it) {
  int found = 0;
  for (uint32_t m = 0; m < M; m++) {
    for (uint32_t n = 0; n < N; n++) {
      float sum = 0.0f;
      for (uint32_t rank = 0; rank < RANKS; rank++)
        for (uint32_t k = 0; k < K; k++)
          sum += from_bf16(it->a[rank][m * K + k]) * from_bf16(it->b[rank][n * K + k]);
      uint32_t owner = m / (M / RANKS), row = m % (M / RANKS);
      found += from_bf16(it->c[owner][row * N + n]) != sum;
    }
  }
  return found;
}

typedef struct {
  flux_handle world, kernel;
  uint32_t rank;
  flux_argument *arguments;
  int32_t launched, recovered;
  char error[512];
} part;

static void *drive(void *given) {
  part *own = (part *)given;
  own->launched = flux_launch_rank(own->kernel, own->rank, own->arguments, 3, NULL, FLUX_OWN_STREAM);
  snprintf(own->error, sizeof own->error, "%s", flux_last_error());
  return NULL;
}

static void *recover(void *given) {
  part *own = (part *)given;
  own->recovered = flux_recover_rank(own->world, own->rank);
  return NULL;
}

static void on_threads(void *(*work)(void *), part *parts, uint32_t count) {
  pthread_t threads[RANKS];
  for (uint32_t i = 0; i < count; i++) CHECK(pthread_create(&threads[i], NULL, work, &parts[i]) == 0);
  for (uint32_t i = 0; i < count; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

static void describe(flux_handle bundle) {
  const char *name = NULL, *schedule = NULL;
  size_t count = 0;
  flux_parameter parameter;
  DONE(flux_bundle_name(bundle, &name));
  CHECK(name != NULL && strcmp(name, "gemm_rs") == 0);
  DONE(flux_bundle_parameters(bundle, &count));
  CHECK(count == 3);
  DONE(flux_bundle_parameter(bundle, 2, &parameter));
  CHECK(strcmp(parameter.name, "c") == 0 && parameter.written == 1);
  CHECK(parameter.dtype == FLUX_BF16 && parameter.distribution == FLUX_SCATTERED);
  DONE(flux_bundle_parameter(bundle, 0, &parameter));
  CHECK(strcmp(parameter.name, "a") == 0 && parameter.written == 0);
  CHECK(parameter.distribution == FLUX_GLOBAL);
  TOLD(flux_bundle_parameter(bundle, 3, &parameter), FLUX_INVALID, "has 3 parameters, found index 3");
  DONE(flux_bundle_schedules(bundle, &count));
  CHECK(count > 0);
  DONE(flux_bundle_schedule(bundle, 0, &schedule));
  CHECK(schedule != NULL && strncmp(schedule, "sm_90a, tile = (", 16) == 0);
}

static void wrong_arguments(flux_handle kernel, problem *it) {
  flux_argument all[RANKS * 3];
  for (uint32_t rank = 0; rank < RANKS; rank++) arguments_of(it, rank, all + 3 * rank);
  TOLD(flux_launch(kernel, all, 11, NULL, 0), FLUX_INVALID, "expected 12 arguments, found 11");
  TOLD(flux_launch(kernel, NULL, 12, NULL, 0), FLUX_INVALID, "`arguments` is null");
  TOLD(flux_launch_rank(kernel, 4, all, 3, NULL, 0), FLUX_INVALID, "rank 4 is not of this process");
  TOLD(flux_launch_rank(kernel, 0, all, 2, NULL, 0), FLUX_INVALID, "`gemm_rs` has 3 parameters, found 2");

  flux_argument *wrong = &all[3 * 2 + 1];
  const flux_argument right = *wrong;
#define WRONG(change, words)                                                                       \
  do {                                                                                             \
    change;                                                                                        \
    TOLD(flux_launch(kernel, all, 12, NULL, 0), FLUX_INVALID, words);                                    \
    *wrong = right;                                                                                \
  } while (0)
  WRONG(wrong->data = NULL, "`b` (rank 2): expected host memory");
  WRONG(wrong->data = (char *)wrong->data + 1, "at a multiple of 2 bytes");
  WRONG(wrong->data = (char *)UINTPTR_MAX - 15, "expected host memory that ends before the last address");
  WRONG(wrong->dtype = FLUX_F16, "`b` of `gemm_rs` is a tensor of bf16, found a tensor of f16");
  WRONG(wrong->dtype = FLUX_SCALAR, "is a tensor of bf16, found a number");
  WRONG(wrong->dtype = 9, "(0 to 3), found type 9");
  WRONG(wrong->device = 0, "expected memory of the host, where its rank computes, found device 0");
  WRONG(wrong->reserved = 1, "expected 0 in `reserved`");
  WRONG(wrong->rows = UINT64_MAX, "elements are too many");
  WRONG((wrong->rows = UINT64_MAX / 2, wrong->cols = 4), "elements are too many");
  /* The others know their shape already, and would not wait to be asked. */
  WRONG(wrong->cols = K / 2, "`a` has k = 16 (rank 0), `b` has k = 8 (rank 2)");
  WRONG(wrong->data = it->c[0], "`c` (rank 0) is an output and shares memory with `b` (rank 2)");
#undef WRONG
}

static void wrong_handles(flux_handle world, flux_handle bundle, flux_handle kernel) {
  flux_handle none = 0;
  flux_ranks ranks;
  TOLD(flux_world_ranks(bundle, &ranks), FLUX_INVALID, "is a bundle, expected a world");
  TOLD(flux_world_ranks(0, &ranks), FLUX_INVALID, "it is 0, which names nothing");
  TOLD(flux_world_ranks(UINT64_MAX, &ranks), FLUX_INVALID, "it was never opened");
  TOLD(flux_world_ranks(world, NULL), FLUX_INVALID, "`ranks` is null");
  TOLD(flux_kernel_load(kernel, bundle, NULL, &none), FLUX_INVALID, "is a kernel, expected a world");
  TOLD(flux_kernel_load(world, bundle, NULL, NULL), FLUX_INVALID, "`kernel` is null");
  TOLD(flux_kernel_load(world, bundle, "sm_90a, stage = 4", &none), FLUX_INVALID,
       "a schedule has no `stage`");
  TOLD(flux_kernel_load(world, bundle, "\xff", &none), FLUX_INVALID, "is not UTF-8");
  TOLD(flux_world_open(NULL, 0, &none), FLUX_INVALID, "`name` is null");
  TOLD(flux_world_open("host:4", 0, NULL), FLUX_INVALID, "`world` is null");
  TOLD(flux_world_open("hosts", 0, &none), FLUX_INVALID, "expected a world such as `host:8`");
  TOLD(flux_world_open("host:65", 0, &none), FLUX_INVALID, "1 to 64 ranks, found 65");
  TOLD(flux_symmetric_open(world, 2, 2, FLUX_F32, &none), FLUX_INVALID, "symmetric");
  TOLD(flux_argument_of_dlpack(NULL, 1, 0, NULL), FLUX_INVALID, "found null");
  TOLD(flux_close(0), FLUX_INVALID, "names nothing");
  CHECK(none == 0);
}

static void damaged(const char *path) {
  flux_handle bundle = 0;
  FILE *file = fopen(path, "rb");
  char *bytes = (char *)malloc(1 << 24);
  if (file == NULL || bytes == NULL) {
    CHECK(0);
    return;
  }
  size_t count = fread(bytes, 1, 1 << 24, file);
  fclose(file);
  DONE(flux_bundle_read((const uint8_t *)bytes, count, &bundle));
  DONE(flux_close(bundle));
  TOLD(flux_bundle_read((const uint8_t *)bytes, count - 1, &bundle), FLUX_INVALID, "is cut short");
  bytes[count / 2] ^= 1;
  TOLD(flux_bundle_read((const uint8_t *)bytes, count, &bundle), FLUX_INVALID, "it is damaged");
  bytes[12] = '7';
  TOLD(flux_bundle_read((const uint8_t *)bytes, count, &bundle), FLUX_INVALID, "it has the format 7");
  TOLD(flux_bundle_read(NULL, 8, &bundle), FLUX_INVALID, "`bytes` is null");
  TOLD(flux_bundle_read(NULL, 0, &bundle), FLUX_INVALID, "it is no bundle");
  TOLD(flux_bundle_open("/no/such/bundle", &bundle), FLUX_INVALID, "/no/such/bundle: ");
  free(bytes);
}

/* One rank launches alone: it gives up, and all go on after they have recovered. */
static void stalled(flux_handle bundle, problem *it) {
  flux_handle world = 0, kernel = 0;
  flux_argument arguments[RANKS][3];
  part parts[RANKS];
  DONE(flux_world_open("host:4", 2000, &world));
  DONE(flux_kernel_load(world, bundle, NULL, &kernel));
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    arguments_of(it, rank, arguments[rank]);
    part own = {world, kernel, rank, arguments[rank], -1, -1, ""};
    parts[rank] = own;
  }
  /* The first launch of a shape is a meeting, so all of them come to it. */
  on_threads(drive, parts, RANKS);
  for (uint32_t rank = 0; rank < RANKS; rank++) CHECK(parts[rank].launched == FLUX_OK);
  CHECK(differences(it) == 0);
  on_threads(drive, parts, 1);
  CHECK(parts[0].launched == FLUX_STALLED);
  CHECK(strstr(parts[0].error, "rank 0 stalled: ") != NULL);
  CHECK(strstr(flux_last_error(), "stalled") == NULL); /* it was another thread's */
  on_threads(recover, parts, RANKS);
  for (uint32_t rank = 0; rank < RANKS; rank++) CHECK(parts[rank].recovered == FLUX_OK);
  fill(it, 5);
  on_threads(drive, parts, RANKS);
  for (uint32_t rank = 0; rank < RANKS; rank++) CHECK(parts[rank].launched == FLUX_OK);
  CHECK(differences(it) == 0);
  DONE(flux_recover(world));
  DONE(flux_close(world)); /* the kernel keeps what it needs of it */
  fill(it, 6);
  on_threads(drive, parts, RANKS);
  CHECK(differences(it) == 0);
  DONE(flux_close(kernel));
}

/* As in dlpack.h. */
typedef struct {
  void *data;
  struct {
    int32_t type, id;
  } device;
  int32_t ndim;
  struct {
    uint8_t code, bits;
    uint16_t lanes;
  } dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} dl_tensor;

typedef struct legacy_tensor {
  dl_tensor tensor;
  void *context;
  void (*deleter)(struct legacy_tensor *);
} legacy_tensor;

typedef struct versioned_tensor {
  uint32_t major, minor;
  void *context;
  void (*deleter)(struct versioned_tensor *);
  uint64_t flags;
  dl_tensor tensor;
} versioned_tensor;

static int deleted = 0;

static void delete_legacy(legacy_tensor *it) {
  (void)it;
  deleted += 1;
}

static void delete_versioned(versioned_tensor *it) {
  (void)it;
  deleted += 1;
}

/* Tensors of another library are described where they are, and stay its own. */
static void dlpack(flux_handle kernel, problem *it, flux_argument *all) {
  int64_t shape[2] = {N, K}, strides[2] = {K, 1};
  dl_tensor tensor;
  legacy_tensor legacy;
  versioned_tensor versioned;
  flux_argument found;
  memset(&tensor, 0, sizeof tensor);
  memset(&legacy, 0, sizeof legacy);
  memset(&versioned, 0, sizeof versioned);
  tensor.data = (char *)it->b[1] - 64;
  tensor.byte_offset = 64;
  tensor.device.type = 1;
  tensor.ndim = 2;
  tensor.dtype.code = 4;
  tensor.dtype.bits = 16;
  tensor.dtype.lanes = 1;
  tensor.shape = shape;
  tensor.strides = strides;
  legacy.tensor = versioned.tensor = tensor;
  legacy.deleter = delete_legacy;
  versioned.deleter = delete_versioned;
  versioned.major = 1;
  fill(it, 21);
  for (int form = 0; form < 2; form++) {
    void *managed = form == 0 ? (void *)&legacy : (void *)&versioned;
    DONE(flux_argument_of_dlpack(managed, form, 0, &found));
    CHECK(found.data == it->b[1] && found.rows == N && found.cols == K);
    CHECK(found.dtype == FLUX_BF16 && found.device == FLUX_HOST);
    all[3 * 1 + 1] = found;
    DONE(flux_launch(kernel, all, RANKS * 3, NULL, FLUX_OWN_STREAM));
    CHECK(differences(it) == 0);
  }
  versioned.flags = 1;
  DONE(flux_argument_of_dlpack(&versioned, 1, 0, &found));
  TOLD(flux_argument_of_dlpack(&versioned, 1, 1, &found), FLUX_INVALID, "must not be written");
  versioned.major = 2;
  TOLD(flux_argument_of_dlpack(&versioned, 1, 0, &found), FLUX_INVALID, "found 2.0");
  strides[0] = K + 1;
  TOLD(flux_argument_of_dlpack(&legacy, 0, 0, &found), FLUX_INVALID, "make it contiguous first");
  TOLD(flux_argument_of_dlpack(&legacy, 2, 0, &found), FLUX_INVALID, "expected 0 or 1");
  CHECK(deleted == 0);
}

/* Rows become columns, over ranks that own rows of unequal number. */
static void exchanged(flux_handle world, const char *path) {
  enum { COLS = 8, ALL = 12 };
  const uint64_t rows[RANKS] = {5, 0, 4, 3}, fewer[RANKS] = {5, 0, 4, 2};
  static uint16_t x[RANKS][ALL * COLS], c[RANKS][ALL * COLS / RANKS];
  flux_handle bundle = 0, kernel = 0;
  flux_argument all[RANKS * 2];
  uint32_t row = 0, differ = 0;
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    for (uint32_t i = 0; i < rows[rank] * COLS; i++) x[rank][i] = bf16((float)(row * COLS + i));
    row += (uint32_t)rows[rank];
    all[2 * rank] = matrix(x[rank], rows[rank], COLS);
    all[2 * rank + 1] = matrix(c[rank], ALL, COLS / RANKS);
  }
  DONE(flux_bundle_open(path, &bundle));
  DONE(flux_kernel_load(world, bundle, NULL, &kernel));
  TOLD(flux_launch(kernel, all, RANKS * 2, NULL, 0), FLUX_INVALID, "owns 3 of 12 rows of `x`");
  TOLD(flux_launch(kernel, all, RANKS * 2, fewer, 0), FLUX_INVALID, "11 in all: `c` has 12");
  DONE(flux_launch(kernel, all, RANKS * 2, rows, FLUX_OWN_STREAM));
  for (uint32_t m = 0; m < ALL; m++)
    for (uint32_t n = 0; n < COLS; n++)
      differ += from_bf16(c[n / (COLS / RANKS)][m * (COLS / RANKS) + n % (COLS / RANKS)]) !=
                (float)(m * COLS + n);
  CHECK(differ == 0);
  DONE(flux_close(kernel));
  DONE(flux_close(bundle));
}

int main(int count, char **values) {
  static problem it;
  flux_argument all[RANKS * 3];
  flux_handle world = 0, bundle = 0, kernel = 0;
  flux_ranks ranks;
  int32_t device = 0;
  if (count != 3) return 2;
  CHECK(flux_abi() == FLUX_ABI);
  CHECK(flux_version()[0] != 0);
  CHECK(flux_last_error()[0] == 0);
  DONE(flux_world_open("host:4", 0, &world));
  DONE(flux_world_ranks(world, &ranks));
  CHECK(ranks.world == RANKS && ranks.first == 0 && ranks.count == RANKS);
  DONE(flux_rank_device(world, 3, &device));
  CHECK(device == FLUX_HOST);
  {
    const uint64_t shards[RANKS] = {3, 3, 3, 1};
    for (uint32_t rank = 0; rank < RANKS; rank++) {
      uint64_t own = 0;
      DONE(flux_own_rows(world, rank, 10, &own));
      CHECK(own == shards[rank]);
    }
    TOLD(flux_own_rows(world, RANKS, 10, NULL), FLUX_INVALID, "rank 4 is none of 4");
  }
  DONE(flux_bundle_open(values[1], &bundle));
  describe(bundle);
  DONE(flux_kernel_load(world, bundle, NULL, &kernel));
  for (uint32_t seed = 0; seed < 3; seed++) {
    fill(&it, seed);
    for (uint32_t rank = 0; rank < RANKS; rank++) arguments_of(&it, rank, all + 3 * rank);
    DONE(flux_launch(kernel, all, RANKS * 3, NULL, seed == 0 ? FLUX_OWN_STREAM : 0));
    CHECK(differences(&it) == 0);
  }
  it.c[1][0] ^= 0x80;
  CHECK(differences(&it) == 1); /* what is compared can differ */
  DONE(flux_synchronize(world));
  DONE(flux_synchronize_rank(world, 2));
  wrong_arguments(kernel, &it);
  wrong_handles(world, bundle, kernel);
  fill(&it, 4);
  DONE(flux_launch(kernel, all, RANKS * 3, NULL, FLUX_OWN_STREAM));
  CHECK(differences(&it) == 0);
  dlpack(kernel, &it, all);
  DONE(flux_close(kernel));
  TOLD(flux_launch(kernel, all, RANKS * 3, NULL, 0), FLUX_INVALID, "it has been closed");
  TOLD(flux_kernel_load(world, bundle, "sm_90a, tile = (64, 64, 32), stages = 3", &kernel),
       FLUX_INVALID, "expected a k-step of 128 bytes");
  DONE(flux_kernel_load(world, bundle, "sm_90a, tile = (128, 64, 64), stages = 3", &kernel));
  fill(&it, 9);
  DONE(flux_launch(kernel, all, RANKS * 3, NULL, FLUX_OWN_STREAM));
  CHECK(differences(&it) == 0);
  exchanged(world, values[2]);
  stalled(bundle, &it);
  damaged(values[1]);
  DONE(flux_close(kernel));
  DONE(flux_close(bundle));
  DONE(flux_close(world));
  TOLD(flux_close(world), FLUX_INVALID, "it has been closed");
  if (failures == 0) printf("all is as expected\n");
  return failures == 0 ? 0 : 1;
}
