// Classify a picture, a binary PPM file, with an exported network: see README.md.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "net.h"

namespace {

constexpr int side = SIDE, classes = CLASSES;

std::vector<float> read_image(const std::string &path)
{
  constexpr float mean[] = {0.485f, 0.456f, 0.406f}, spread[] = {0.229f, 0.224f, 0.225f};
  std::ifstream file(path, std::ios::binary);
  std::string kind;
  int width = 0, height = 0, most = 0;
  file >> kind >> width >> height >> most;
  file.get();
  const auto fits = [](int n) { return 0 < n && n <= 1 << 14; };
  if (!file || kind != "P6" || most != 255 || !fits(width) || !fits(height))
    throw std::runtime_error(path + ": it is not a binary PPM file");
  std::vector<unsigned char> pixels(static_cast<std::size_t>(width) * height * 3);
  if (!file.read(reinterpret_cast<char *>(pixels.data()), static_cast<std::streamsize>(pixels.size())))
    throw std::runtime_error(path + ": it is too short");
  std::vector<float> image;
  for (int channel = 0; channel < 3; channel++)
    for (int y = 0; y < side; y++)
      for (int x = 0; x < side; x++) {
        const std::size_t at = static_cast<std::size_t>(y * height / side) * width + x * width / side;
        image.push_back((pixels[3 * at + channel] / 255.0f - mean[channel]) / spread[channel]);
      }
  return image;
}

std::vector<float> run(const std::vector<float> &image)
{
  std::vector<float> scores(classes);
  std::vector<unsigned char> workspace(NET_WORKSPACE_BYTES + 1);
  const int code = net_run(image.data(), scores.data(), workspace.data(), workspace.size());
  if (code != NET_OK) throw std::runtime_error(net_error(code));
  return scores;
}

}  // namespace

int main(int argc, char **argv)
try {
  if (argc != 2) throw std::runtime_error("usage: classify picture.ppm");
  const std::vector<float> scores = run(read_image(argv[1]));
  std::vector<int> order(classes);
  std::iota(order.begin(), order.end(), 0);
  const int best = std::min(5, classes);
  std::partial_sort(order.begin(), order.begin() + best, order.end(),
                    [&](int a, int b) { return scores[a] > scores[b]; });
  for (int n = 0; n < best; n++) std::printf("class %d: %.4f\n", order[n], scores[order[n]]);
  return 0;
} catch (const std::exception &error) {
  std::cerr << error.what() << '\n';
  return 1;
}
