/* The C API of anyfuse: one page, plain C.
 *
 * Every operator is one function over one params struct. A struct begins with its own size, so that a caller built
 * against an older header keeps working: fields a caller does not know are taken as zero, and zero always means "as
 * before". All pointers are host pointers to contiguous memory. No function prints, aborts or throws; each returns a
 * status, and nothing has been written when the status is not ANYFUSE_OK. The mathematics of each operator is in the
 * docstring of src/anyfuse/ops/<operator>.py.
 *
 * The Python package reads types, fields and numbers from this file. */
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
  ANYFUSE_BOOL = 12,
  ANYFUSE_BFLOAT16 = 27,
  ANYFUSE_INT4 = 29,
  ANYFUSE_HIFLOAT8 = 34,
  ANYFUSE_FLOAT8_E5M2 = 35,
  ANYFUSE_FLOAT8_E4M3FN = 36
};

/* Which numbers: the published formula, or the order of operations of the device kernel. */
typedef int32_t anyfuse_convention;
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

/* ---- PyTorch ---- */

/* Registers every operator as torch.ops.anyfuse.<operator> with the PyTorch (2.10 or later) that is in the process, so
 * that programs without Python can run packages of AOTInductor that hold them; once. `import anyfuse` does it by
 * itself. Without Python an operator takes dense, contiguous tensors on the CPU, and refuses all others in one
 * sentence. Returns NULL, or a sentence that says what is missing (PyTorch, or a function of it). */
ANYFUSE_API const char *anyfuse_torch_register(void);

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
  uint32_t seed; /* of this tensor, for stochastic rounding */
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
  anyfuse_convention convention;
  int32_t maximize; /* the gradient's sign is turned */
  int32_t threads;
  int32_t stochastic_rounding; /* var and s of 16 bits are rounded up or down by chance */
  double correction1; /* with bias_correction, what stands for 1 - beta1^step of every tensor; 0: that itself */
  double correction2;
} anyfuse_apply_fused_ema_adamw_params;

ANYFUSE_API anyfuse_status anyfuse_apply_fused_ema_adamw(const anyfuse_apply_fused_ema_adamw_params *params);

/* ---- add_rms_norm_dynamic_quant: add, RMSNorm and one or two row-wise quantizations in one pass ---- */

/* Optional inputs are null when absent, and their dtype is then not looked at. A branch k is produced when its y and
 * scale pointers are given; both branches' codes have one dtype. Outputs must not overlap inputs. ANYFUSE_INT4 codes
 * lie two to a byte, the low nibble first (cols even): read as little-endian int32, the same bytes are the
 * eight-to-a-word form. */
typedef struct anyfuse_add_rms_norm_dynamic_quant_params {
  size_t size;
  int64_t rows;
  int64_t cols;
  const void *x1;    /* (rows, cols) */
  const void *x2;    /* null: nothing is added */
  const void *gamma; /* (cols) */
  const void *smooth_scale1;
  const void *smooth_scale2;
  const void *beta;
  void *y1; /* (rows, cols) codes of y_dtype */
  void *y2;
  void *x;       /* (rows, cols) of x_dtype; null: not stored */
  float *scale1; /* (rows) */
  float *scale2;
  double epsilon;        /* 0 or more */
  anyfuse_dtype x_dtype; /* of x1, x2 and x */
  anyfuse_dtype gamma_dtype;
  anyfuse_dtype smooth_scale1_dtype;
  anyfuse_dtype smooth_scale2_dtype;
  anyfuse_dtype beta_dtype;
  anyfuse_dtype y_dtype; /* INT8, INT4, FLOAT8_E4M3FN, FLOAT8_E5M2 or HIFLOAT8 */
  anyfuse_convention convention;
  int32_t threads;
} anyfuse_add_rms_norm_dynamic_quant_params;

ANYFUSE_API anyfuse_status anyfuse_add_rms_norm_dynamic_quant(const anyfuse_add_rms_norm_dynamic_quant_params *params);

/* ---- lazy_adam: Adam for the rows of tables that a step names, equal ids summed first, for a list of tables ---- */

/* Whose number of steps corrects the learning rate: nobody's (lr is used as given), the table's, or each row's own. */
enum { ANYFUSE_LR_AS_GIVEN = 0, ANYFUSE_CORRECTED_BY_STEP = 1, ANYFUSE_CORRECTED_BY_ROW = 2 };

/* Ids may be a mask (ANYFUSE_BOOL): one byte for each row of the table, or NULL for all of them. The gradient then has
 * all rows of the table (n = rows), of which those are read whose byte is not 0. */

typedef struct anyfuse_lazy_adam_row {
  int64_t n;    /* rows given; at most 2^32 - 1 without assume_unique */
  int64_t rows; /* of the table */
  int64_t dim;
  const void *gradient; /* n rows of dim */
  const void *indices;  /* n ids; negative ones are skipped */
  void *m;              /* fp32 */
  void *v;              /* fp32 */
  void *var;
  double lr; /* of this table; already bias-corrected where bias_correction is ANYFUSE_LR_AS_GIVEN */
  anyfuse_dtype gradient_dtype;
  anyfuse_dtype indices_dtype; /* ANYFUSE_INT32, ANYFUSE_INT64 or ANYFUSE_BOOL */
  anyfuse_dtype var_dtype;
  int32_t reserved;
  int64_t step;        /* of this table, 1 at the first; used by ANYFUSE_CORRECTED_BY_STEP, catch_up and rounding */
  int32_t *row_step;   /* one for each row, updated; ANYFUSE_CORRECTED_BY_ROW: how often the row was stepped; catch_up:
                          the last step that named it, 0 for none */
  int64_t padding_idx; /* read with refuse_negative: the id that is skipped, INT64_MIN for none */
  uint32_t seed;       /* of this table, for stochastic rounding */
  int32_t reserved2;
} anyfuse_lazy_adam_row;

typedef struct anyfuse_lazy_adam_params {
  size_t size;
  size_t row_size;
  const anyfuse_lazy_adam_row *rows;
  int64_t count;
  double beta1;
  double beta2;
  double epsilon;        /* its magnitude in fp32 is at least that of 1e-8 */
  int32_t assume_unique; /* the ids of a table are distinct: equal ones are not looked for */
  anyfuse_convention convention;
  int32_t threads;
  int32_t reserved;
  double weight_decay;
  double grad_scale; /* sums of gradients are divided by it; 0 stands for 1 */
  int32_t bias_correction;
  int32_t eps_outside;     /* 1: epsilon is added to the corrected root of v, as AdamW does */
  int32_t catch_up;        /* 1: a row first takes the steps that it was not named in; not beside a row's correction */
  int32_t refuse_negative; /* 1: a negative id other than padding_idx is an error, not skipped */
  int32_t maximize;        /* the gradient's sign is turned */
  int32_t stochastic_rounding; /* var of 16 bits is rounded up or down by chance */
} anyfuse_lazy_adam_params;

ANYFUSE_API anyfuse_status anyfuse_lazy_adam(const anyfuse_lazy_adam_params *params);

/* ---- quant_matmul_dequant: rows quantized to int8, times int8 weights, back to float, in one pass ---- */

/* How the weights of a logical matrix W[n, k] lie. */
enum {
  ANYFUSE_WEIGHT_NK = 0,    /* (n, k) */
  ANYFUSE_WEIGHT_KN = 1,    /* (k, n) */
  ANYFUSE_WEIGHT_NZ_NK = 2, /* FRACTAL_NZ (ceil(k/32), ceil(n/16), 16, 32): [k/32][n/16][n%16][k%32] */
  ANYFUSE_WEIGHT_NZ_KN = 3, /* FRACTAL_NZ (ceil(n/32), ceil(k/16), 16, 32): [n/32][k/16][k%16][n%32] */
  /* (ceil(n/16), ceil(k/4), 16, 4): [n/16][k/4][n%16][k%4], as the kernels of every target read */
  ANYFUSE_WEIGHT_PACKED = 4
};

/* How many scales the rows of x have, where scales are given. */
enum { ANYFUSE_PER_TOKEN = 0, ANYFUSE_PER_TENSOR = 1 };

typedef struct anyfuse_quant_matmul_dequant_params {
  size_t size;
  int64_t m;
  int64_t n;
  int64_t k;                /* at most 131071 */
  const void *x;            /* (m, k); int8: rows already quantized, with their scales in x_scale */
  const void *weight;       /* int8; padding of the blocked layouts is never used */
  const void *weight_scale; /* (n) float32; int64: the low 32 bits are the float32 weight scale times x scale */
  const int32_t *bias;      /* (n) or NULL */
  const void *x_scale;      /* (m) or (1), float32, or float16 beside an int64 weight_scale; NULL: from each row */
  const void *smooth_scale; /* (k) or NULL */
  void *out;                /* (m, n) */
  anyfuse_dtype x_dtype;
  anyfuse_dtype weight_scale_dtype;
  anyfuse_dtype x_scale_dtype;
  anyfuse_dtype smooth_scale_dtype;
  anyfuse_dtype out_dtype;
  int32_t weight_layout;
  int32_t quant_mode;
  anyfuse_convention convention;
  int32_t threads;
  int32_t reserved;
} anyfuse_quant_matmul_dequant_params;

ANYFUSE_API anyfuse_status anyfuse_quant_matmul_dequant(const anyfuse_quant_matmul_dequant_params *params);

/* The index of the target that quant_matmul_dequant runs on: the one in use or, where its int8 kernel gave a wrong
 * answer to a known question (asked once, at first use), the best one below that answers right. -1 as
 * anyfuse_target_current. */
ANYFUSE_API int32_t anyfuse_quant_matmul_dequant_target(void);

/* ---- quant_grouped_matmul_dequant: quant_matmul_dequant of groups of rows, each with weights of its own ---- */

typedef struct anyfuse_quant_grouped_matmul_dequant_params {
  size_t size;
  /* All rows, m of them. weight, weight_scale (n) and bias (n) are those of each group, one after the other. */
  const anyfuse_quant_matmul_dequant_params *matmul;
  int64_t groups;
  const int64_t *group_list; /* (groups) the end of each group's rows, ascending, at most m; outputs beyond are 0 */
  int32_t own_smooth_scale;  /* 1: smooth_scale is (groups, k), 0: (k) */
  int32_t reserved;
} anyfuse_quant_grouped_matmul_dequant_params;

ANYFUSE_API anyfuse_status
anyfuse_quant_grouped_matmul_dequant(const anyfuse_quant_grouped_matmul_dequant_params *params);

/* ---- apply_adam_w_quant: AdamW with moments of 8 bits, scaled block by block, for a list of tensors ---- */

typedef struct anyfuse_apply_adam_w_quant_row {
  int64_t numel;
  const void *grad;
  void *var;
  void *m; /* codes, one byte an element; fp32 where state_bits is 32 */
  void *v;
  float *absmax_m; /* one for each block; the last block may be partial; unused where state_bits is 32 */
  float *absmax_v;
  int64_t step; /* of this tensor; the first step is 1, and 0 in the device convention */
  anyfuse_dtype grad_dtype;
  anyfuse_dtype var_dtype;
  void *s; /* NULL, or the EMA of var */
  anyfuse_dtype s_dtype;
  int32_t state_bits; /* 8 (0 stands for it) or 32 */
  uint32_t seed;      /* of this tensor, for stochastic rounding */
  int32_t reserved;
} anyfuse_apply_adam_w_quant_row;

typedef struct anyfuse_apply_adam_w_quant_params {
  size_t size;
  size_t row_size;
  const anyfuse_apply_adam_w_quant_row *rows;
  int64_t count;
  const float *qmap_m; /* 256 finite values in ascending order */
  const float *qmap_v;
  int64_t block_size; /* 64, 128, 256, 512, 1024 or 2048 */
  double lr;
  double beta1;
  double beta2;
  double weight_decay;
  double eps;
  double gnorm_scale;
  double grad_scale; /* gradients are divided by it; 0 stands for 1 */
  anyfuse_convention convention;
  int32_t maximize;       /* the gradient's sign is turned */
  int32_t skip_nonfinite; /* a block whose gradient is not finite everywhere stays as it is */
  int32_t nonzero_v;      /* a second moment above 0 never gets the code of 0 */
  int32_t threads;
  int32_t stochastic_rounding; /* var and s of 16 bits are rounded up or down by chance */
  double ema_decay;
} anyfuse_apply_adam_w_quant_params;

ANYFUSE_API anyfuse_status anyfuse_apply_adam_w_quant(const anyfuse_apply_adam_w_quant_params *params);

#ifdef __cplusplus
}
#endif
#endif
