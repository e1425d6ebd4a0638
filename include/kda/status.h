/* Generated from data/errors/kda.json by tools/generate_errors.py: do not edit. */
#ifndef KDA_STATUS_H_
#define KDA_STATUS_H_

#include <stdint.h>

/* KDA_OK, or the number n of the catalogue entry KDA-nnnn (docs/errors.md). */
typedef int32_t kda_status;

enum {
  KDA_OK                = 0,
  KDA_E_NULL            = 1001, /* a required pointer is null */
  KDA_E_STRUCT_SIZE     = 1002, /* struct_size does not fit */
  KDA_E_SHAPE           = 1003, /* a tensor has the wrong shape */
  KDA_E_DTYPE           = 1004, /* a tensor has the wrong dtype */
  KDA_E_STRIDE          = 1005, /* a tensor's strides are not supported */
  KDA_E_ALIGNMENT       = 1006, /* an address or stride is not aligned */
  KDA_E_OVERLAP         = 1007, /* an output overlaps an input */
  KDA_E_DEVICE          = 1008, /* a tensor is on the wrong device */
  KDA_E_PLAN_LIMIT      = 1009, /* the call is larger than the plan */
  KDA_E_WORKSPACE       = 1010, /* the workspace is missing, too small or not aligned */
  KDA_E_COMBINATION     = 1011, /* arguments do not go together */
  KDA_E_NUMBER          = 1012, /* a number is out of range */
  KDA_E_NOT_PLANNED     = 1013, /* the plan does not serve this operation */
  KDA_E_SLOT_RANGE      = 2001, /* a slot is beyond its pool */
  KDA_E_SLOT_DUPLICATE  = 2002, /* a slot is written twice in one call */
  KDA_E_SLOT_ALIASED    = 2003, /* a row writes a slot that another row reads */
  KDA_E_PARENT          = 2004, /* a parent is not an earlier node of its row */
  KDA_E_CU_SEQLENS      = 2005, /* cu_seqlens does not cut the token axis */
  KDA_E_TIP             = 2006, /* a tip is not a node of its row's record */
  KDA_E_SNAPSHOT        = 2007, /* a snapshot entry is out of range */
  KDA_E_RECORD_ROW      = 2008, /* a record row is out of range or used twice */
  KDA_E_DIMS            = 3001, /* the head geometry is not supported */
  KDA_E_MAXIMA          = 3002, /* a maximum of the problem is out of range */
  KDA_E_DTYPES          = 3003, /* the dtypes are not supported together */
  KDA_E_KERNEL_UNKNOWN  = 3004, /* a forced kernel does not exist */
  KDA_E_KERNEL_UNFIT    = 3005, /* a forced kernel cannot serve the problem */
  KDA_E_BACKEND         = 3006, /* the backend is not available */
  KDA_E_WORKSPACE_LIMIT = 3007, /* the plan needs more workspace than allowed */
  KDA_E_NO_KERNEL       = 3008, /* no kernel serves an operation of the problem */
  KDA_E_RESERVED        = 3009, /* a reserved argument is set */
  KDA_E_NUMERICS        = 3010, /* the numerics are not served */
  KDA_E_FORM            = 3011, /* the form of gate, beta, normalisation or layout is not served */
  KDA_E_OPTION          = 3012, /* an option has an unknown value */
  KDA_E_POOL_STALE      = 4001, /* the slot handle is stale */
  KDA_E_POOL_EXHAUSTED  = 4002, /* no slot is free */
  KDA_E_POOL_PENDING    = 4003, /* the slot has a pending commit */
  KDA_E_POOL_IMAGE      = 4004, /* the exported state does not fit this pool */
  KDA_E_POOL_MEMORY     = 4005, /* the memory given to the pool is too small or not aligned */
  KDA_E_OUT_OF_MEMORY   = 5001, /* memory could not be allocated */
  KDA_E_THREADS         = 5002, /* threads could not be started */
  KDA_E_CPU_TARGET      = 5003, /* the SIMD target is not available */
  KDA_E_CUDA_DEVICE     = 5004, /* the CUDA device is not available */
  KDA_E_INTERNAL        = 5005, /* an internal error */
  KDA_E_CAPTURE         = 5006, /* calls cannot be captured */
};

#endif /* KDA_STATUS_H_ */
