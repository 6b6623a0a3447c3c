# Ruby reads this at each start: the tools load when code uses them.
autoload :Tools, "#{__dir__}/tools.rb"
