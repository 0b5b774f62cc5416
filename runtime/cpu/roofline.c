/* What the processor can do: fused multiply-adds from registers, and a triad from memory.
 * LANES is the number of floats in a vector register. */
#ifdef _OPENMP
#include <omp.h>
#else
#define omp_get_num_threads() 1
#define omp_get_thread_num() 0
#endif
#include <stdint.h>

typedef float V __attribute__((vector_size(4 * LANES), aligned(4)));

#define FOR_ALL(DO) \
    DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define START(N) V a##N = x + N##.0f;
#define STEP(N) a##N = a##N * x + y;
#define ADD(N) x += a##N;

/* `repetitions` times 12 independent multiply-adds of vectors on each thread. */
float multiply_add(int32_t threads, int64_t repetitions);
float multiply_add(int32_t threads, int64_t repetitions)
{
    float total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
    {
        V x = {0}, y = {0};
        x += 0.999f;
        y += 0.001f;
        FOR_ALL(START)
        for (int64_t r = 0; r < repetitions; r++) {
            FOR_ALL(STEP)
        }
        FOR_ALL(ADD)
        for (int n = 0; n < LANES; n++)
            total += x[n];
    }
    return total;
}

/* `repetitions` times a = b + c * 3, each of `count` vectors, in one part for each thread. */
void triad(int32_t threads, int64_t repetitions, int64_t count, V *a, const V *b, const V *c);
void triad(int32_t threads, int64_t repetitions, int64_t count, V *a, const V *b, const V *c)
{
#pragma omp parallel num_threads(threads)
    {
        int64_t part = count / omp_get_num_threads() / 4 * 4;
        int64_t from = part * omp_get_thread_num();
        for (int64_t r = 0; r < repetitions; r++) {
            for (int64_t i = from; i < from + part; i += 4) {
#pragma GCC unroll 4
                for (int k = 0; k < 4; k++)
                    a[i + k] = b[i + k] + c[i + k] * 3.0f;
            }
            __asm__ volatile("" : : "r"(a) : "memory");
        }
    }
}
