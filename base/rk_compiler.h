/* Compiler attributes used across the project. */
#ifndef RK_COMPILER_H
#define RK_COMPILER_H

/* Declarations of public headers between these are visible to plug-ins, which resolve them from the program
 * that loads them (engine/rk_plugin.h); everything else is hidden. */
#ifdef __cplusplus
#define RK_BEGIN_DECLS                                 \
    _Pragma("GCC visibility push(default)") extern "C" \
    {
#define RK_END_DECLS \
    }                \
    _Pragma("GCC visibility pop")
#else
#define RK_BEGIN_DECLS _Pragma("GCC visibility push(default)")
#define RK_END_DECLS   _Pragma("GCC visibility pop")
#endif

#define RK_NODISCARD         __attribute__((warn_unused_result))
#define RK_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define RK_RETURNS_NONNULL   __attribute__((returns_nonnull))
#define RK_NORETURN          __attribute__((noreturn))

#define RK_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define RK_MIN(a, b)    ((a) < (b) ? (a) : (b))
#define RK_MAX(a, b)    ((a) > (b) ? (a) : (b))

#endif
