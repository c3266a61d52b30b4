// full_disk_probe FOLDER save|load: for full_disk_test.sh. The disk fills up after a save has passed its own check.
#include <cstdio>
#include <string>

#include "checkpoint/checkpoint.hpp"
#include "comm/launch.hpp"

using namespace fourfold;

int main(int argc, char** argv) {
  const Launch launch(&argc, &argv);
  const Communicator& world = launch.world();
  const std::string folder = argc > 1 ? argv[1] : "";
  const bool saving = argc > 2 && std::string(argv[2]) == "save";
  return run_guarded(launch, [&] {
    checkpoint::NamedShard shard{"/params/w", h5::ElementType::fp32, whole_shard({512, 1024}), nullptr, {}};
    shard.shard.flat = part(512 * 1024, world.size(), world.rank());
    shard.owned = {0, shard.shard.size()};
    std::vector<float> data(static_cast<std::size_t>(shard.shard.size()), 1.0f);
    shard.data = data.data();
    checkpoint::SaveOptions options;
    options.check_space = false;
    if (saving) {
      for (const std::int64_t step : {1, 2}) checkpoint::save(world, folder, step, {shard}, {}, options);
    } else {
      const checkpoint::Restart restart = checkpoint::load_newest(world, folder, {shard});
      if (world.rank() == 0)
        std::printf("loaded step %d\n", restart.loaded ? static_cast<int>(restart.loaded->source.step) : -1);
    }
    return 0;
  });
}
