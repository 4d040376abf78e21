/* Every tolerance of the tests, with its reason. A test names one of these; it does not write a number. */
#ifndef RK_TEST_TOLERANCE_H
#define RK_TEST_TOLERANCE_H

/* Relative, fp32, where the order of a sum differs between the two sides (another layout, another library):
 * n * 2^-24 for the longest sums of the tiny models, with room for cancellation. */
#define RK_TOL_F32_SUM 1e-5
/* RK_TOL_F32_SUM in f64, relative to the largest element: 1e-10 leaves five digits to the fp32 factors of
 * kernels.
 */
#define RK_TOL_F64_SUM 1e-10
/* Relative, fp32, elementwise operations or short sums: a few ulps. */
#define RK_TOL_F32_ELEMENT 1e-6
/* Absolute, logits of a whole model in fp32 against another implementation. */
#define RK_TOL_F32_LOGITS 1e-4
/* Relative, one rounding to nearest of a result that is exact to a few 1e-5: 8 bits of significand in bf16,
 * 11 in f16. */
#define RK_TOL_BF16_ROUND 0x1.02p-8
#define RK_TOL_F16_ROUND  0x1.1p-11
/* Relative to the largest element: sums of products one of whose factors was rounded to bf16 before, for
 * example the probabilities of attention: 2^-9 of each term, twice if it is used in two products, and 2^-9 of
 * the result. */
#define RK_TOL_BF16_PRODUCT 0x1p-7
/* Relative to the largest element: a whole model of a few layers in bf16, forward and backward, with
 * roundings at different places. transformers is up to 4e-2 away from fp64 on models of this size
 * (golden/qwen2_tiny*). */
#define RK_TOL_BF16_MODEL 0x1p-4
/* A ratio: the normalised mean squared error of a layout in bf16, relative to f32 with the same weights,
 * divided by that of one rank in bf16. A factor of 2, because a layout also rounds partial sums of tp, times
 * 4 for the variance of estimates from few elements: a bias has 16. The largest ratio observed in the gate is
 * 5.3 for biases of keys, 3.5 for other gradients, 1.5 for log-probs; without the sum of a gradient it is 400
 * or more. */
#define RK_TOL_BF16_ERRORS 8
/* Relative error of a gradient against central differences in f64: truncation (h^2) and cancellation (2^-52 /
 * h) meet near h = 1e-5. */
#define RK_TOL_GRADIENT_F64 1e-6
/* Error of a kernel's gradient, relative to its largest element, against the five-point stencil in f64 at
 * h = 2e-4: h^4 = 1.6e-15 and 2^-52 / h = 1.1e-12, with room for large fifth derivatives and losses. */
#define RK_TOL_GRADIENT_KERNEL 1e-9
/* Absolute: a frequency among 20000 draws that was published with four decimals. */
#define RK_TOL_FREQUENCY 5.1e-5
/* Absolute: a value that was published with five decimals. */
#define RK_TOL_FIVE_DECIMALS 5.1e-6
/* Relative, f64 against a hand-computed or published value of at least 12 digits. */
#define RK_TOL_F64 1e-12
/* Relative, losses in f64 against verl's own functions: verl adds 1e-8 to some counts, and the fixtures hold
 * gradients and metrics as f32. */
#define RK_TOL_LOSS_GOLDEN 1e-6
/* Absolute, against a published value that is given to six decimals. */
#define RK_TOL_SIX_DECIMALS 1e-6

/* Elements smaller than this are compared absolutely: a relative error of a value near zero is
 * meaningless. */
#define RK_TOL_FLOOR 1e-3

#endif
