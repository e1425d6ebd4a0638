// Every fact of the engines' descriptions decides something: flipped, the answer to its witness changes.
#include <gtest/gtest.h>

#include "doctor/support.h"

namespace kda::doctor {
namespace {

std::string answer(const Question& question, const Engine& engine) {
  const nlohmann::ordered_json json = to_json(the_doctor().diagnose(question, engine));
  return json["verdict"].dump() + json["phases"].dump() + json["engine"]["resolved"].dump() +
         json["engine"]["notes"].dump();
}

Engine load(const std::string& file, const std::string& version) {
  return load_engine(Resources().json(file), version, file);
}

class Facts : public testing::TestWithParam<const char*> {};

TEST_P(Facts, EachFlipsAnAnswer) {
  const std::string file = GetParam();
  const Json description = Resources().json(file);
  size_t steps = 0, needs = 0, choices = 0;
  const auto check = [&](const std::string& id, const Json& witness, const auto& flip) {
    SCOPED_TRACE(file + " " + id);
    ASSERT_FALSE(witness.is_null()) << "a fact without a witness";
    Question question = question_of(witness, "fact");
    question.fixes = false;
    const std::string version = witness.value("version", "");
    Engine engine = load(file, version);
    const std::string before = answer(question, engine);
    ASSERT_TRUE(flip(engine)) << "the witness's version does not have this fact";
    std::string after;
    try {
      after = answer(question, engine);
    } catch (const UsageError& error) {
      after = error.what();
    }
    EXPECT_NE(before, after) << witness.at("command");
  };
  for (const Json& row : description.at("steps")) {
    const std::string id = row.at("id").get<std::string>();
    ++steps;
    check("step " + id, row.value("witness", Json()), [&](Engine& engine) {
      for (Step& step : engine.steps) {
        if (step.id != id) continue;
        step.when = Expression::parse(step.when.text().empty() ? "false" : "!(" + step.when.text() + ")");
        return true;
      }
      return false;
    });
  }
  for (const Json& row : description.at("kernels")) {
    for (const Json& fact : row.value("needs", Json::array())) {
      const std::string id = fact.at("id").get<std::string>();
      ++needs;
      check("need " + id, fact.value("witness", Json()), [&](Engine& engine) {
        for (Kernel& kernel : engine.kernels)
          for (Need& need : kernel.needs) {
            if (need.id != id) continue;
            need.need = Expression::parse("!(" + need.need.text() + ")");
            return true;
          }
        return false;
      });
    }
  }
  // A value that is taken away from an option's choices is refused at launch.
  const Engine newest = load(file, "");
  for (const OptionSpec& option : newest.options) {
    for (const std::string& choice : option.choices) {
      ++choices;
      const std::string launcher = newest.name == "vllm" ? "vllm serve --model" : "sglang serve --model-path";
      const Json witness = {{"gpu", "h200"},
                            {"command", launcher + " moonshotai/Kimi-K3 " + option.flags[0] + " " + choice}};
      check("choice " + option.flags[0] + " " + choice, witness, [&](Engine& engine) {
        for (OptionSpec& candidate : engine.options) {
          if (candidate.field != option.field) continue;
          std::erase(candidate.choices, choice);
          if (candidate.choices.empty()) candidate.choices = {"nothing"};
          return true;
        }
        return false;
      });
    }
  }
  std::printf("%s: %zu steps, %zu needs, %zu choices flipped\n", file.c_str(), steps, needs, choices);
  EXPECT_GT(steps + needs, 80u);
}

INSTANTIATE_TEST_SUITE_P(Engines, Facts, testing::Values("engines/sglang.json", "engines/vllm.json"));

TEST(Descriptions, EveryRowHasASourceAndUniqueIds) {
  for (const char* file : {"engines/sglang.json", "engines/vllm.json"}) {
    std::vector<std::string> ids;
    const Json description = Resources().json(file);
    for (const Json& row : description.at("steps")) {
      ids.push_back(row.at("id"));
      EXPECT_FALSE(row.value("source", "").empty()) << row;
    }
    for (const Json& row : description.at("kernels")) {
      EXPECT_FALSE(row.value("source", "").empty()) << row;
      for (const Json& need : row.value("needs", Json::array())) ids.push_back(need.at("id"));
    }
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end()) << *std::adjacent_find(ids.begin(), ids.end());
  }
}

TEST(Descriptions, BrokenOnesAreRefusedWithTheirPlace) {
  const Json good = Resources().json("engines/sglang.json");
  const auto complaint = [&](const auto& breakage) {
    Json copy = good;
    breakage(copy);
    try {
      load_engine(copy, "", "engines/x.json");
    } catch (const DataError& error) {
      EXPECT_EQ(std::string(error.what()).rfind("engines/x.json", 0), 0u) << error.what();
      return true;
    } catch (const Json::exception&) {
      return true;
    }
    return false;
  };
  EXPECT_TRUE(complaint([](Json& d) { d.erase("described"); }));
  EXPECT_TRUE(complaint([](Json& d) { d["steps"][0]["when"] = "a &&"; }));
  EXPECT_TRUE(complaint([](Json& d) { d["steps"][0].erase("source"); }));
  EXPECT_TRUE(complaint([](Json& d) { d["kernels"][0]["needs"][0]["else"]["outcome"] = "explodes"; }));
  EXPECT_TRUE(complaint([](Json& d) { d["kernels"][0]["needs"][0]["else"].erase("to"); }));
  EXPECT_FALSE(complaint([](Json&) {}));
}

TEST(Versions, Ranges) {
  EXPECT_TRUE(version_in("0.5.23", ">=0.5.23"));
  EXPECT_FALSE(version_in("0.5.3", ">=0.5.23"));
  EXPECT_TRUE(version_in("0.5.20", ">=0.5.10 <0.5.23"));
  EXPECT_TRUE(version_in("0.33", "0.33.0"));
  EXPECT_TRUE(version_in("9", "*"));
}

}  // namespace
}  // namespace kda::doctor
