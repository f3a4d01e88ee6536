/* The C API of anyfuse: one page, plain C.
 *
 * Every operator is one function over one params struct. A struct begins with its own size, so that a caller built against
 * an older header keeps working: fields a caller does not know are taken as zero, and zero always means "as before".
 * All pointers are host pointers to contiguous memory. No function prints, aborts or throws; each returns a status, and
 * nothing has been written when the status is not ANYFUSE_OK. The mathematics of each operator is in the docstring of
 * src/anyfuse/ops/<operator>.py. */
#ifndef ANYFUSE_H
#define ANYFUSE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define ANYFUSE_API __attribute__((visibility("default")))
#else
#define ANYFUSE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t anyfuse_status;
enum {
  ANYFUSE_OK = 0,
  ANYFUSE_INVALID_POINTER = 1, /* a required pointer is null */
  ANYFUSE_INVALID_DTYPE = 2,   /* a dtype that the operator does not take */
  ANYFUSE_INVALID_SIZE = 3,    /* a negative or unsupported size, or a struct size from a future header */
  ANYFUSE_INVALID_VALUE = 4,   /* an attribute out of range */
  ANYFUSE_INVALID_INDEX = 5,   /* an index outside its table */
  ANYFUSE_NO_TARGET = 6,       /* the target asked for is unknown here, or the CPU lacks it */
  ANYFUSE_OUT_OF_MEMORY = 7
};

/* Element types, numbered as aclDataType. */
typedef int32_t anyfuse_dtype;
enum {
  ANYFUSE_FLOAT32 = 0,
  ANYFUSE_FLOAT16 = 1,
  ANYFUSE_INT8 = 2,
  ANYFUSE_INT32 = 3,
  ANYFUSE_UINT8 = 4,
  ANYFUSE_INT64 = 9,
  ANYFUSE_BFLOAT16 = 27,
  ANYFUSE_INT4 = 29,
  ANYFUSE_HIFLOAT8 = 34,
  ANYFUSE_FLOAT8_E5M2 = 35,
  ANYFUSE_FLOAT8_E4M3FN = 36
};

/* Which numbers: the published formula, or the order of operations of the device kernel. */
enum { ANYFUSE_FORMULA = 0, ANYFUSE_DEVICE = 1 };

/* ---- the library ---- */

ANYFUSE_API const char *anyfuse_version(void);
ANYFUSE_API const char *anyfuse_status_name(anyfuse_status status);

/* Instruction sets compiled in, best last. Returns NULL past the end. */
ANYFUSE_API const char *anyfuse_target_name(int32_t index);
/* 1 if this CPU can run the target of that index, else 0. */
ANYFUSE_API int32_t anyfuse_target_available(int32_t index);
/* The index in use, or -1 when ANYFUSE_TARGET names one that cannot run here (every operator then fails). */
ANYFUSE_API int32_t anyfuse_target_current(void);
/* Chooses by name; NULL or "" chooses the best available. */
ANYFUSE_API anyfuse_status anyfuse_target_set(const char *name);

/* Where parallel loops run: "openmp" (the pool that is already in the process), "std" or "none". */
ANYFUSE_API const char *anyfuse_thread_pool(void);

/* ---- apply_fused_ema_adamw: AdamW and an EMA of the weights in one pass, for a list of tensors ---- */

typedef struct anyfuse_apply_fused_ema_adamw_row {
  int64_t numel;
  const void *grad;
  void *var;
  void *m;
  void *v;
  void *s;
  int64_t step; /* of this tensor; the first step is 1 */
  anyfuse_dtype grad_dtype;
  anyfuse_dtype var_dtype;
  anyfuse_dtype m_dtype;
  anyfuse_dtype v_dtype;
  anyfuse_dtype s_dtype;
  int32_t reserved;
} anyfuse_apply_fused_ema_adamw_row;

typedef struct anyfuse_apply_fused_ema_adamw_params {
  size_t size;
  size_t row_size;
  const anyfuse_apply_fused_ema_adamw_row *rows;
  int64_t count;
  double lr;
  double ema_decay;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  double grad_scale; /* gradients are divided by it; 0 stands for 1 */
  int32_t mode;      /* 1 AdamW, 0 Adam with L2 */
  int32_t bias_correction;
  int32_t convention;
  int32_t maximize; /* the gradient's sign is turned */
  int32_t threads;
  int32_t reserved;
} anyfuse_apply_fused_ema_adamw_params;

ANYFUSE_API anyfuse_status anyfuse_apply_fused_ema_adamw(const anyfuse_apply_fused_ema_adamw_params *params);

/* ---- stream: the memory traffic of a kernel without its arithmetic, the roofline of `anyfuse bench` ---- */

enum { ANYFUSE_STREAM_READ = 0, ANYFUSE_STREAM_UPDATE = 1, ANYFUSE_STREAM_WRITE = 2 };

typedef struct anyfuse_stream_array {
  void *data;       /* aligned to 64 bytes; its contents are changed unless it is only read */
  int64_t width;    /* bytes a unit */
  int32_t access;   /* ANYFUSE_STREAM_... */
  int32_t by_index; /* 1: unit i lies in row index[i] */
} anyfuse_stream_array;

/* Without an index, `tile` units of one array are touched before the next array's turn: a power of two up to 16384 that
 * divides `units`, with tile * width a multiple of 64. With an index every width is a multiple of 64. */
typedef struct anyfuse_stream_params {
  size_t size;
  const anyfuse_stream_array *arrays;
  int64_t count;
  int64_t units;
  int64_t tile;
  const int64_t *index; /* NULL, or `units` rows */
  int32_t nontemporal;  /* 1: written arrays go past the caches where the CPU can do that */
  int32_t threads;
} anyfuse_stream_params;

ANYFUSE_API anyfuse_status anyfuse_stream(const anyfuse_stream_params *params);

#ifdef __cplusplus
}
#endif
#endif
