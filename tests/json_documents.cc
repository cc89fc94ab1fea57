// SPDX-License-Identifier: Apache-2.0
#include "tests/json_documents.h"

#include <fstream>
#include <regex>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep {

class JsonCheck {
 public:
  explicit JsonCheck(JsonDocuments& documents) : documents_(documents) {}

  void CheckObject(const std::string& section, const nlohmann::json& object) const {
    const auto table = documents_.types_.find(section);
    ASSERT_NE(table, documents_.types_.end()) << "no section " << section;
    for (const auto& [key, value] : object.items()) {
      const auto type = table->second.find(key);
      if (type == table->second.end()) {
        ADD_FAILURE() << "'" << key << "' is not in the table of " << section;
        continue;
      }
      documents_.written_[section].insert(key);
      SCOPED_TRACE(section + "." + key + ": " + value.dump());
      CheckValue(type->second, value);
    }
  }

  void CheckValue(const std::string& type, const nlohmann::json& value) const {
    static const std::regex link(R"(\[(\w+)\]\(#\w+\))");
    std::smatch match;
    const std::string many = "list of ", named = "object of ";
    if (value.is_null()) {
      EXPECT_NE(type.find(" or null"), std::string::npos);
    } else if (type.rfind(many, 0) == 0) {
      ASSERT_TRUE(value.is_array());
      for (const nlohmann::json& element : value) CheckValue(type.substr(many.size()), element);
    } else if (type.rfind(named, 0) == 0) {
      ASSERT_TRUE(value.is_object());
      for (const auto& [key, element] : value.items()) {
        CheckValue(type.substr(named.size()), element);
      }
    } else if (std::regex_search(type, match, link)) {
      ASSERT_TRUE(value.is_object());
      CheckObject(match[1], value);
    } else if (type.rfind("whole number", 0) == 0) {
      EXPECT_TRUE(value.is_number_integer());
    } else if (type.rfind("number", 0) == 0) {
      EXPECT_TRUE(value.is_number());
    } else if (type.rfind("text", 0) == 0) {
      EXPECT_TRUE(value.is_string());
    } else if (type == "true or false") {
      EXPECT_TRUE(value.is_boolean());
    } else if (type == "object") {
      EXPECT_TRUE(value.is_object());
    } else {
      ADD_FAILURE() << "the table has a type of its own: " << type;
    }
  }

 private:
  JsonDocuments& documents_;
};

JsonDocuments::JsonDocuments(const std::string& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in.good()) << path;
  std::string line, section;
  static const std::regex row(R"(^\| (`.*`) \| (.*?) \|.*)");
  static const std::regex key(R"(`([^`]+)`)");
  while (std::getline(in, line)) {
    std::smatch match;
    if (line.rfind("## ", 0) == 0) section = line.substr(3);
    if (!std::regex_match(line, match, row)) continue;
    const std::string keys = match[1], type = match[2];
    for (auto it = std::sregex_iterator(keys.begin(), keys.end(), key);
         it != std::sregex_iterator(); ++it) {
      types_[section][(*it)[1]] = type;
    }
  }
}

void JsonDocuments::Check(const std::string& section, const std::string& text) {
  const nlohmann::json value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(value.is_object()) << text;
  JsonCheck(*this).CheckObject(section, value);
}

void JsonDocuments::ExpectAllWritten() const {
  for (const auto& [section, written] : written_) {
    for (const auto& [key, type] : types_.at(section)) {
      EXPECT_TRUE(written.count(key)) << "nobody writes '" << key << "' of " << section;
    }
  }
}

}  // namespace lockstep
