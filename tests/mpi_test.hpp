// For tests with RANKS: the launch that tests/mpi_main.cpp made.
#pragma once

namespace fourfold {
class Launch;
}

namespace fourfold::test {

const Launch& launch();

}  // namespace fourfold::test
