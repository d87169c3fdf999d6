#include "t.h"

TEST(sizes_and_names) {
  CHECK_INT(tpu_dtype_size(TPU_F32), 4);
  CHECK_INT(tpu_dtype_size(TPU_C128), 16);
  CHECK_INT(tpu_dtype_size(TPU_BOOL), 1);
  CHECK_STR(tpu_dtype_name(TPU_BF16), "bfloat16");
  CHECK_STR(tpu_dtype_name(TPU_F8E8M0FNU), "float8_e8m0fnu");
}

TEST(numbers_that_are_no_dtype) {
  CHECK_INT(tpu_dtype_size((tpu_dtype)8), 0); /* complex32 */
  CHECK_INT(tpu_dtype_size(TPU_NO_DTYPE), 0);
  CHECK_STR(tpu_dtype_name((tpu_dtype)63), "?");
}

T_MAIN()
