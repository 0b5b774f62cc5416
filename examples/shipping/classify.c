/* Classify a picture, a binary PPM file, with an exported network: see README.md. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net.h"

#ifndef SIDE
#define SIDE 224 /* pixels of the network's input */
#endif
#ifndef CLASSES
#define CLASSES 1000
#endif
#define BEST 5

static float image[3 * SIDE * SIDE], scores[CLASSES];
static unsigned char workspace[NET_WORKSPACE_BYTES + 1];

/* Read a picture, and set the image to it; returns what is wrong, or NULL. */
static const char *read_image(const char *path)
{
  static const float mean[3] = {0.485f, 0.456f, 0.406f}, spread[3] = {0.229f, 0.224f, 0.225f};
  int width, height, most;
  FILE *file = fopen(path, "rb");
  if (file == NULL) return "it cannot be opened";
  if (fscanf(file, "P6 %d %d %d", &width, &height, &most) != 3 || fgetc(file) == EOF
      || most != 255 || width < 1 || height < 1 || width > 1 << 14 || height > 1 << 14) {
    fclose(file);
    return "it is not a binary PPM file";
  }
  const size_t bytes = (size_t)width * (size_t)height * 3;
  unsigned char *pixels = malloc(bytes);
  const int whole = pixels != NULL && fread(pixels, 1, bytes, file) == bytes;
  fclose(file);
  for (int n = 0; whole && n < 3 * SIDE * SIDE; n++) {
    const int channel = n / (SIDE * SIDE), y = n / SIDE % SIDE, x = n % SIDE;
    const size_t at = (size_t)(y * height / SIDE) * (size_t)width + (size_t)(x * width / SIDE);
    image[n] = ((float)pixels[3 * at + (size_t)channel] / 255 - mean[channel]) / spread[channel];
  }
  free(pixels);
  return whole ? NULL : "it is too short";
}

int main(int argc, char **argv)
{
  if (argc != 2) {
    fprintf(stderr, "usage: %s picture.ppm\n", argv[0]);
    return 2;
  }
  const char *wrong = read_image(argv[1]);
  if (wrong != NULL) {
    fprintf(stderr, "%s: %s\n", argv[1], wrong);
    return 1;
  }
  const int code = net_run(image, scores, workspace, sizeof workspace);
  if (code != NET_OK) {
    fprintf(stderr, "%s\n", net_error(code));
    return 1;
  }
  for (int k = 0; k < BEST && k < CLASSES; k++) {
    int best = 0;
    for (int n = 1; n < CLASSES; n++)
      if (scores[n] > scores[best]) best = n;
    printf("class %d: %.4f\n", best, scores[best]);
    scores[best] = -1e30f;
  }
  return 0;
}
