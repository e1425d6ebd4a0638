// Every row of the catalogue is triggered, with texts that say what was asked and what would do.
#include "api/refusals.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "kda/kda.hpp"

namespace kda_test {
namespace {

constexpr kda_status kFirstToolCode = 6000;  // codes from here on are reported by the kda command, not by the library

class RefusalTest : public testing::TestWithParam<Refusal> {};

TEST_P(RefusalTest, HasItsCodeAndTexts) {
  kda_error error = kda::args<kda_error>();
  const kda_status status = GetParam().trigger(&error);
  EXPECT_STREQ(kda_status_name(status), kda_status_name(GetParam().expected)) << error.message;
  EXPECT_EQ(error.status, status);
  EXPECT_NE(error.asked[0], '\0');
  EXPECT_NE(error.supported[0], '\0');
  EXPECT_NE(error.way_out[0], '\0');
  EXPECT_EQ(std::strncmp(error.message, kda_status_code(status), std::strlen(kda_status_code(status))), 0)
      << error.message;
  EXPECT_EQ(GetParam().trigger(nullptr), status) << "a refusal does not depend on where its text goes";
}

INSTANTIATE_TEST_SUITE_P(Catalogue, RefusalTest, testing::ValuesIn(all_refusals()),
                         [](const testing::TestParamInfo<Refusal>& info) { return info.param.name; });

TEST(Catalogue, EveryRowHasATest) {
  std::set<kda_status> triggered;
  for (const Refusal& refusal : all_refusals()) triggered.insert(refusal.expected);
  int rows = 0;
  for (kda_status status = 1; status < kFirstToolCode; ++status) {
    if (std::strcmp(kda_status_name(status), "KDA_E_UNKNOWN") == 0) continue;
    ++rows;
    EXPECT_TRUE(triggered.count(status)) << kda_status_name(status) << " has no entry in all_refusals()";
  }
  EXPECT_GT(rows, 40);
}

TEST(Catalogue, GeneratedFilesAreUpToDate) {
  const std::string command = "python3 " KDA_SOURCE_DIR "/tools/generate_errors.py --check";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST(Errors, AnOlderErrorStructIsFilledAsFarAsItGoes) {
  kda_error error;
  std::memset(&error, 0x55, sizeof(error));
  error.struct_size = offsetof(kda_error, supported);
  EXPECT_EQ(kda_can_run(nullptr, nullptr, &error), KDA_E_NULL);
  EXPECT_EQ(error.status, KDA_E_NULL);
  EXPECT_STREQ(error.asked, "context: NULL");
  EXPECT_EQ(error.supported[0], 0x55);
  EXPECT_EQ(error.message[0], 0x55);
}

}  // namespace
}  // namespace kda_test
