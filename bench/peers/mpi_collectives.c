// SPDX-License-Identifier: Apache-2.0
// The peer of bench/collectives.py: MPI's collectives on fp32 sums, timed as ours are: calls in a
// row after a barrier, the slowest rank, the median of five rounds. Prints one line of JSON.
//   mpirun -n N mpi_collectives SECONDS OPERATION,.. BYTES..
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kRounds = 5, kWarmUps = 3 };

static float *input, *output;
static int ranks;

static void Call(int operation, int count) {
  const int part = count / ranks;
  if (operation == 0) {
    MPI_Allreduce(MPI_IN_PLACE, input, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  } else if (operation == 1) {
    MPI_Reduce_scatter_block(input, output, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  } else if (operation == 2) {
    MPI_Allgather(input, part, MPI_FLOAT, output, part, MPI_FLOAT, MPI_COMM_WORLD);
  } else {
    MPI_Bcast(input, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
  }
}

// Seconds a call of the slowest rank.
static double Time(int operation, int count, int calls) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  for (int i = 0; i < calls; ++i) Call(operation, count);
  double seconds = (MPI_Wtime() - start) / calls;
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds > 1e-9 ? seconds : 1e-9;
}

static int Compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const char* names[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast"};
  const double wanted = atof(argv[1]) / kRounds;
  long most = 0;
  for (int i = 3; i < argc; ++i) most = atol(argv[i]) > most ? atol(argv[i]) : most;
  input = calloc(1, (size_t)most + 4096);
  output = calloc(1, (size_t)most + 4096);
  if (rank == 0) printf("{\"rows\":[");
  for (int operation = 0, rows = 0; operation < 4; ++operation) {
    for (int i = 3; i < argc && strstr(argv[2], names[operation]) != NULL; ++i) {
      int count = (int)(atol(argv[i]) / 4);
      if (operation == 1 || operation == 2)
        count = count / ranks > 0 ? count / ranks * ranks : ranks;
      double calls = wanted / Time(operation, count, kWarmUps);
      calls = calls < 1 ? 1 : calls > 100000 ? 100000 : calls;
      double times[kRounds];
      for (int r = 0; r < kRounds; ++r) times[r] = Time(operation, count, (int)calls);
      qsort(times, kRounds, sizeof(double), Compare);
      if (rank == 0) {
        printf(
            "%s{\"operation\":\"%s\",\"bytes\":%d,\"microseconds\":%.3f,\"least_microseconds\":%."
            "3f}",
            rows++ ? "," : "", names[operation], count * 4, times[kRounds / 2] * 1e6,
            times[0] * 1e6);
      }
    }
  }
  if (rank == 0) printf("]}\n");
  MPI_Finalize();
  return 0;
}
