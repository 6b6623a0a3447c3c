# Tools that this code can call. They run outside of the sandbox; results are data.
#
#   Tools.SERVER.TOOL(name: value)      calls a tool
#   Tools.help(:SERVER, :TOOL)          its signature and what it does
#   Tools.search("words")               signatures of the tools with these words
#   Tools.map(list, at_once: 8) { }     calls the block for each; the results are in order
require 'json'
require 'socket'

module Tools
  # A tool, or its server, failed. code is error, denied, usage, timeout, cancelled or unavailable.
  class ToolError < StandardError
    attr_reader :server, :tool, :code, :content

    def initialize(message, server = '', tool = '', code = 'error', content = nil)
      super(message)
      @server, @tool, @code, @content = server, tool, code, content
    end
  end
  class ToolDenied < ToolError; end
  class ToolTimeout < ToolError; end

  # Bytes that a tool answered with, in a file.
  class ToolFile
    attr_reader :path, :mime_type

    def initialize(data, mime_type)
      Dir.mkdir('/tmp/tools') unless Dir.exist?('/tmp/tools')
      extension = mime_type.to_s[%r{\A[a-z]+/([a-z0-9]+)}, 1] || 'bin'
      @path = "/tmp/tools/#{$$}-#{object_id}.#{extension}"
      @mime_type = mime_type
      File.binwrite(@path, data.to_s.unpack1('m'))
    end

    def save(target)
      File.binwrite(target, File.binread(@path))
      target
    end

    # Has the answer of this call show the image.
    def show
      Dir.mkdir('/workspace/outputs') unless Dir.exist?('/workspace/outputs')
      save("/workspace/outputs/#{File.basename(@path)}")
    end
  end

  # A result that is more than data or a text.
  class Content
    attr_reader :raw, :text, :images, :files, :links

    def initialize(raw)
      @raw, @images, @files, @links = raw, [], [], []
      texts = []
      (raw['content'] || []).each do |item|
        resource = item['resource'] || {}
        case item['type']
        when 'text' then texts << item['text']
        when 'image' then @images << ToolFile.new(item['data'], item['mimeType'])
        when 'audio' then @files << ToolFile.new(item['data'], item['mimeType'])
        when 'resource_link' then @links << item
        when 'resource'
          resource.key?('blob') ? @files << ToolFile.new(resource['blob'], resource['mimeType']) : texts << resource['text']
        end
      end
      @text = texts.join("\n")
    end
  end

  # The tools of a server.
  class Server < BasicObject
    def initialize(name)
      @name = name
    end

    def [](tool)
      name = @name
      ::Kernel.lambda { |given = {}, **named| ::Tools.call(name, tool, given.empty? ? named : given) }
    end

    def inspect = ::Tools.help(@name)
    def to_s = inspect
    def respond_to?(*) = true

    def method_missing(tool, given = {}, **named)
      self[tool.to_s].call(given.empty? ? named : given)
    end
  end

  class << self
    def catalog
      @catalog ||= JSON.parse(File.read("#{ENV['NIX_SANDBOX_TOOLS'] || '/tools'}/catalog.json"))
    end

    # The result as the server sent it.
    def raw(server, tool, arguments = {})
      question = JSON.generate(server: server.to_s, tool: tool.to_s, arguments: arguments)
      answer = exchange(question)
      if (failure = answer['error'])
        kind = { 'denied' => ToolDenied, 'timeout' => ToolTimeout }.fetch(failure['kind'], ToolError)
        near = (failure['near'] || []).map { |one| "\n  Tools.#{one}" }.join
        raise kind.new(failure['message'] + near, server, tool, failure['kind'])
      end
      result = answer['result']
      return result unless result['isError']

      content = Content.new(result)
      raise ToolError.new("#{server}.#{tool}: #{content.text.empty? ? 'it failed' : content.text}", server, tool, 'error', content)
    end

    def call(server, tool, arguments = {})
      value(raw(server, tool, arguments))
    end

    def help(server = nil, tool = nil)
      return search('').join("\n") unless server

      own = catalog.fetch(server.to_s) { raise ToolError.new("there is no server #{server}; there are #{catalog.keys.join(', ')}", server, '', 'usage') }
      return own.values.map { |one| "Tools.#{server}.#{one['signature']}" }.join("\n") unless tool

      one = own.fetch(tool.to_s)
      "Tools.#{server}.#{one['signature']}\n\n#{one['description']}"
    end

    def search(words)
      wanted = words.downcase.split
      catalog.flat_map do |server, own|
        own.select { |name, tool| wanted.all? { |word| "#{server} #{name} #{tool['description']}".downcase.include?(word) } }
           .map { |_, tool| "Tools.#{server}.#{tool['signature']}" }
      end
    end

    def map(list, at_once: 8)
      results = []
      list.each_slice(at_once) { |some| results.concat(some.map { |one| Thread.new { yield one } }.map(&:value)) }
      results
    end

    def method_missing(name, *)
      return Server.new(name.to_s) if catalog.key?(name.to_s)

      raise ToolError.new("there is no server #{name}; there are #{catalog.keys.join(', ')}", name, '', 'usage')
    end

    def respond_to_missing?(name, all = false)
      catalog.key?(name.to_s) || super
    end

    private

    # A connection of this thread and process.
    def connection
      pid, socket = Thread.current[:sandbox_tools]
      return socket if pid == $$

      socket = UNIXSocket.new("\0nix-sandbox-tools")
      Thread.current[:sandbox_tools] = [$$, socket]
      socket
    end

    def exchange(question)
      done = false
      socket = connection
      socket.write([question.bytesize].pack('N') + question)
      size = socket.read(4)
      raise IOError unless size

      answer = JSON.parse(socket.read(size.unpack1('N')).force_encoding('UTF-8'))
      done = true
      answer
    rescue SystemCallError, IOError
      raise ToolError.new('tools are reached while a call of run is going on, and the connection to them has ended', '', '', 'unavailable')
    ensure
      unless done
        # An answer that is on its way belongs to nothing any more.
        socket&.close
        Thread.current[:sandbox_tools] = nil
      end
    end

    # Whether a text is this text, or this number, boolean or null as JSON: the same in each language.
    def same?(only, text)
      return only == text if only.is_a?(String)

      !only.is_a?(Hash) && !only.is_a?(Array) && JSON.parse(text) == only
    rescue JSON::ParserError
      false
    end

    # What code wants of a result.
    def value(result)
      content = result['content'] || []
      is_text = !content.empty? && content.all? { |item| item['type'] == 'text' }
      text = content.map { |item| item['text'] }.join("\n") if is_text
      if result.key?('structuredContent')
        data = result['structuredContent']
        # Many servers wrap a text or a number, because structured data was an object once.
        wraps = is_text && data.is_a?(Hash) && data.length == 1 && same?(data.values.first, text)
        return wraps ? data.values.first : data
      end
      return content.empty? ? nil : Content.new(result) unless is_text

      if content.length == 1 && text.match?(/\A\s*[\[{]/)
        begin
          return JSON.parse(text)
        rescue JSON::ParserError
          return text
        end
      end
      text
    end
  end
end
