# A C compiler: its driver, its passes and its linker, threads, what it built.
set -eu
cat >program.c <<'C'
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static void *work(void *p) { *(int *)p += 1; return NULL; }
int main(void) {
  int counts[8] = {0};
  pthread_t threads[8];
  for (int i = 0; i < 8; i++) if (pthread_create(&threads[i], NULL, work, &counts[i])) return 1;
  for (int i = 0; i < 8; i++) if (pthread_join(threads[i], NULL) || counts[i] != 1) return 2;
  char *memory = malloc(64 << 20);
  for (int i = 0; i < 64 << 20; i += 4096) memory[i] = 1;
  return puts("built") < 0;
}
C
cc -O2 -pipe -Wall -pthread -o program program.c
[ "$(./program)" = built ]
echo ok
