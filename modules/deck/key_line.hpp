// How the tables of keys are written: a line is a DeckKey under construction.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "deck/keys.hpp"

namespace fourfold {

inline constexpr double kMostExtent = 1 << 20;  // of one axis of a grid

inline Limits between(double least, double most) {
  return Limits{least, most, false, false, 0, SIZE_MAX};
}
inline Limits at_least(double least) {
  return Limits{least, HUGE_VAL, false, false, 0, SIZE_MAX};
}
inline Limits above(double least) {
  return Limits{least, HUGE_VAL, true, false, 0, SIZE_MAX};
}
inline Limits fraction() {
  return Limits{0, 1, false, true, 0, SIZE_MAX};
}  // 0 <= x < 1

// A line of the table. `Access` takes a deck and returns a pointer to the field; enums list their names in order.
class Line {
 public:
  Line(std::string path, KeyType type, std::string comment) {
    key_.path = std::move(path);
    key_.type = type;
    key_.comment = std::move(comment);
  }

  template <class Access>
  Line& field(Access access) {
    using Field = std::remove_pointer_t<decltype(access(std::declval<Deck&>()))>;
    if constexpr (std::is_enum_v<Field>) {
      key_.set = [access, names = key_.choices](Deck& deck, const Value& value) {
        for (std::size_t i = 0; i < names.size(); ++i) {
          if (names[i] == std::get<std::string>(value)) *access(deck) = static_cast<Field>(i);
        }
      };
      key_.get = [access, names = key_.choices](const Deck& deck) {
        return Value(names[static_cast<std::size_t>(*access(deck))]);
      };
    } else if constexpr (std::is_integral_v<Field> && !std::is_same_v<Field, bool>) {
      key_.set = [access](Deck& deck, const Value& value) {
        *access(deck) = static_cast<Field>(std::get<std::int64_t>(value));
      };
      key_.get = [access](const Deck& deck) { return Value(static_cast<std::int64_t>(*access(deck))); };
    } else {
      key_.set = [access](Deck& deck, const Value& value) { *access(deck) = std::get<Field>(value); };
      key_.get = [access](const Deck& deck) { return Value(*access(deck)); };
    }
    return *this;
  }

  Line& limits(const Limits& limits) {
    key_.limits = limits;
    return *this;
  }
  Line& entries(std::size_t fewest, std::size_t most) {
    key_.limits.fewest_entries = fewest;
    key_.limits.most_entries = most;
    return *this;
  }
  Line& list_help(std::string text) {
    key_.list_help = std::move(text);
    return *this;
  }
  Line& choices(std::vector<std::string> names) {
    key_.choices = std::move(names);
    return *this;
  }
  Line& counted(std::string name) {
    key_.counted = std::move(name);
    return *this;
  }
  Line& needed(Need need, std::string example) {
    key_.need = need;
    key_.example = std::move(example);
    return *this;
  }
  Line& derived(std::string how, std::string example) {
    key_.derived = std::move(how);
    key_.example = std::move(example);
    return *this;
  }
  Line& only_if(bool (*present)(const Deck&)) {
    key_.get = [get = key_.get, present](const Deck& deck) { return present(deck) ? get(deck) : std::nullopt; };
    return *this;
  }
  Line& stored(std::function<void(Deck&, const Value&)> set, std::function<std::optional<Value>(const Deck&)> get) {
    key_.set = std::move(set);
    key_.get = std::move(get);
    return *this;
  }

  // A value that is neither given nor derived yet is 0 or an empty list in the structs: it is not written.
  DeckKey key() && {
    if (!key_.fixed_default()) {
      key_.get = [get = key_.get, least = key_.limits.least](const Deck& deck) -> std::optional<Value> {
        const std::optional<Value> value = get(deck);
        if (!value) return std::nullopt;
        if (const auto* number = std::get_if<std::int64_t>(&*value); number && static_cast<double>(*number) < least) {
          return std::nullopt;
        }
        if (const auto* list = std::get_if<std::vector<std::string>>(&*value); list && list->empty()) {
          return std::nullopt;
        }
        if (const auto* list = std::get_if<std::vector<std::int64_t>>(&*value); list && list->empty()) {
          return std::nullopt;
        }
        return value;
      };
    }
    return std::move(key_);
  }

 private:
  DeckKey key_;
};

template <class Access>
Line integer(std::string path, const Limits& limits, std::string comment, Access access) {
  return std::move(Line(std::move(path), KeyType::integer, std::move(comment)).field(access).limits(limits));
}
template <class Access>
Line number(std::string path, const Limits& limits, std::string comment, Access access) {
  return std::move(Line(std::move(path), KeyType::number, std::move(comment)).field(access).limits(limits));
}
template <class Access>
Line boolean(std::string path, std::string comment, Access access) {
  return std::move(Line(std::move(path), KeyType::boolean, std::move(comment)).field(access));
}
template <class Access>
Line text(std::string path, std::string comment, Access access) {
  return std::move(Line(std::move(path), KeyType::text, std::move(comment)).field(access));
}
template <class Access>
Line texts(std::string path, std::string comment, Access access) {
  return std::move(Line(std::move(path), KeyType::texts, std::move(comment)).field(access));
}
template <class Access>
Line integers(std::string path, const Limits& limits, std::string comment, Access access) {
  return std::move(Line(std::move(path), KeyType::integers, std::move(comment)).field(access).limits(limits));
}
template <class Access>
Line grids(std::string path, const Limits& limits, std::string comment, Access access) {
  return std::move(Line(std::move(path), KeyType::grids, std::move(comment)).field(access).limits(limits));
}
template <class Access>
Line choice(std::string path, std::string comment, std::vector<std::string> names, Access access) {
  return std::move(Line(std::move(path), KeyType::choice, std::move(comment)).choices(std::move(names)).field(access));
}

}  // namespace fourfold
