/* Loops and singles in sequence, in teams of 1 to 9 threads, from four threads at once: every
   region must give what one thread gives.  Exits with the number of those that do not. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 200 };

static void body(int64_t rounds, int64_t n, int64_t *x, int64_t *y)
{
  for (int64_t t = 0; t < rounds; t++) {
    #pragma omp for schedule(runtime)
    for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[(i + 1) % n];
    #pragma omp single
    { y[0] += t; }
    #pragma omp for collapse(2) schedule(runtime)
    for (int64_t i = 0; i < n; i += 10)
      for (int64_t j = 0; j < 10; j++)
        if (i + j < n) x[i + j] = y[i + j] ^ t;
    #pragma omp single
    { x[n - 1] ^= y[0]; y[n / 2] = 0; }
    #pragma omp for schedule(runtime)
    for (int64_t i = t % 3; i > 0; i--)
      if (i < n) x[i]++;
  }
}

static int64_t run(int threads, int64_t rounds, int64_t n)
{
  int64_t x[N], y[N], sum = 0;
  for (int i = 0; i < N; i++) x[i] = i, y[i] = 0;
  #pragma omp parallel num_threads(threads)
  body(rounds, n, x, y);
  for (int i = 0; i < N; i++) sum = sum * 31 + x[i] + y[i];
  #pragma omp parallel num_threads(threads)
  {
    #pragma omp for schedule(runtime) nowait
    for (int64_t i = 0; i < n; i++) x[i] = i;
    #pragma omp single
    sum++;
  }
  for (int i = 0; i < n; i++) sum += x[i];
  return sum;
}

static void *many(void *wrong)
{
  for (int k = 0; k < REGIONS; k++) {
    int64_t n = 1 + k * 37 % N, rounds = k % 23;
    *(int *)wrong += run(1 + k % 9, rounds, n) != run(1, rounds, n);
  }
  return NULL;
}

int main(void)
{
  int wrong[4] = {0}, status = 0;
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, many, &wrong[i]);
  many(&wrong[3]);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
#ifdef FORK
  if (fork() == 0) {
    many(&wrong[3]);
    _exit(wrong[3]);
  }
  wait(&status);
#endif
  return wrong[0] + wrong[1] + wrong[2] + wrong[3] + (status != 0);
}
